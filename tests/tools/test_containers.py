"""contrib/docker: the files named by the build exist, and the containers' programs work, outside of containers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from servers import Server, free_port, start_rmemcached

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "contrib" / "docker"
SCRIPTS = Path(sys.executable).parent
PORT = "11211"


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile, with their arguments, in its order."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    found: list[list[tuple[str, str]]] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, arguments))
    return found


BUILD, FINAL = stages()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def arguments(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [each for name, each in stage if name == instruction]


def packages(stage: list[tuple[str, str]]) -> set[str]:
    """The packages of apt-get in a stage."""
    (command,) = re.findall(r"apt-get install ([^&]*)", " ".join(arguments(stage, "RUN")))
    return {word for word in command.split() if not word.startswith("-")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the image, with the programs of this environment."""
    environment = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def in_the_image(program: str) -> str:
    """A program of the image, in this environment."""
    return str(SCRIPTS / program)


def stopped(server: Server) -> int:
    """The status of a daemon after the signal of `docker stop`."""
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(20)


def test_what_is_copied_is_in_a_source_distribution() -> None:
    """The copied files are tracked (tests/test_packaging.py), and include everything that setup.py reads."""
    copied = {word.rstrip("/") for line in arguments(BUILD, "COPY") for word in line.split()[:-1]}
    if (ROOT / ".git").exists():
        done = subprocess.run(["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True)
        tracked = set(done.stdout.splitlines())
        tracked |= {str(folder) for name in tracked for folder in Path(name).parents}
        assert copied <= tracked
    assert all((ROOT / name).exists() for name in copied)
    assert {"setup.py", "pyproject.toml", "rmemcached", "client", "bench"} <= copied
    assert arguments(FINAL, "COPY") == ["--from=build /opt/rmemcached /opt/rmemcached"]


def test_packages() -> None:
    """The build's packages are those of script/prepare.sh. The image has no compiler, headers or pip."""
    prepare = (ROOT / "script" / "prepare.sh").read_text()
    names = set(re.findall(r"\becho ((?:[a-z][a-z0-9.+-]+ ?)+)$", prepare, re.MULTILINE))
    assert packages(BUILD) <= {name for line in names for name in line.split()}
    assert not [name for name in packages(FINAL) if re.search("-dev$|^gcc|^python3-", name)]
    # This machine, too, has the libraries: they come with the build's headers.
    for name in packages(FINAL) - {"python3"}:
        done = subprocess.run(["dpkg-query", "-W", name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_image_runs_without_rights() -> None:
    (user,) = arguments(FINAL, "USER")
    assert user == "rmemcached" and re.search(rf"useradd .* {user}\b", " ".join(arguments(FINAL, "RUN")))
    names = [name for name, _ in FINAL]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))


def test_the_image_serves_says_so_and_ends() -> None:
    """The image runs ENTRYPOINT with CMD, HEALTHCHECK with and without the daemon, and ends by SIGTERM."""
    (entry,), (options,) = arguments(FINAL, "ENTRYPOINT"), arguments(FINAL, "CMD")
    assert json.loads(entry) == ["rmemcached"]
    check = json.loads(arguments(FINAL, "HEALTHCHECK")[0].partition(" CMD ")[2])
    with start_rmemcached(*json.loads(options)) as server:
        done = run(*(word.replace(PORT, str(server.port)) for word in check))
        assert done.returncode == 0, done.stderr
        assert stopped(server) == 0
    assert run(*(word.replace(PORT, str(server.port)) for word in check)).returncode == 1


def test_services_are_made_of_this_image() -> None:
    for name, service in SERVICES.items():
        assert service["image"] == "rmemcached", name
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True, name
        if "build" in service:
            assert (FOLDER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", []):
            source, _, path = volume.partition(":")
            assert source in COMPOSE["volumes"] and [path] == arguments(FINAL, "VOLUME")
    assert SERVICES["rdma"]["ulimits"]["memlock"] == -1 and SERVICES["rdma"]["network_mode"] == "host"
    assert SERVICES["rdma"]["devices"] == ["/dev/infiniband"]


@pytest.mark.parametrize("name", ["daemon", "rdma"])
def test_the_services_of_compose(name: str, tmp_path: Path) -> None:
    """The daemon takes its options, the client shared memory by the socket, and the exporter sees the set and get."""
    port = free_port()
    (folder,) = arguments(FINAL, "VOLUME")

    def here(word: str) -> str:
        return word.replace(PORT, str(port)).replace(folder, str(tmp_path)).replace("daemon:", "127.0.0.1:")

    command = [sys.executable, "-P", "-m", "rmemcached", *map(here, SERVICES[name]["command"])]
    with Server([*command, *(["-u", "root"] if os.geteuid() == 0 else [])], port) as server:
        client = SERVICES["client"]
        done = run(*client["entrypoint"], *map(here, client["command"]))
        assert (done.returncode, done.stdout) == (0, "hello from a container over soft_shm\n"), done.stderr
        # The socket appears a little after the port, and before the first answer to a client.
        assert (tmp_path / "shm.sock").is_socket() == (name == "daemon")
        exporter = SERVICES["exporter"]
        words = [*map(in_the_image, exporter["entrypoint"]), *map(here, exporter["command"])]
        listen = words.index("--listen") + 1
        assert exporter["ports"] == [f"127.0.0.1:9150{words[listen]}"]
        words[listen] = "127.0.0.1:0"
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            where = re.search(r"http://\S+", process.stderr.readline())
            assert where is not None
            got = run("python", "-c", f"import urllib.request as u; print(u.urlopen({where[0]!r}).read().decode())")
            process.terminate()
        assert re.search(r'^memcached_commands_total\{command="get",status="hit"\} 1', got.stdout, re.MULTILINE), got
        assert process.returncode == 0
        assert stopped(server) == 0
