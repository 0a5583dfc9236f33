"""rmemcached-exporter: every statistic is a metric, the metrics keep Prometheus' rules, and servers come and go."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from daemon_tools import rdma_client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families
from scripted import Scripted
from servers import Server, free_port, start_rmemcached
from tls_relay import TlsRelay, make_certificate

from rmemcached.client import Client
from rmemcached.tools import metrics, targets
from rmemcached.tools.exporter import main

ROOT = Path(__file__).resolve().parents[2]
ServerFactory = Callable[..., Server]
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ABBREVIATED = re.compile(
    r"_(s|ms|us|ns|sec|m|min|h|d|b|kb|mb|gb|tb|milliseconds|microseconds|kilobytes|megabytes)(_|$)"
)


class Exporter:
    """The command, on a free port."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "rmemcached.tools.exporter", "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.stderr = self.process.stderr
        line = self.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/metrics$", line.strip())
        assert found, line
        self.port = int(found[1])

    def text(self, path: str = "/metrics", accept: str = "text/plain") -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read().decode()

    def values(self, path: str = "/metrics") -> Values:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families(self.text(path))
            for sample in family.samples
        }

    def scrape(self, server: str) -> Values:
        return self.values(f"/scrape?target={quote(server, safe='')}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        self.stderr.close()
        return status


@pytest.fixture
def exporter() -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*arguments: str) -> Exporter:
        started.append(Exporter(*arguments))
        return started[-1]

    yield start
    assert [one.stop() for one in started] == [0] * len(started)


UP = ("memcached_up", ())


@pytest.mark.parametrize(
    "options", ["-o idle_timeout=60,track_sizes", "-o lru_algorithm=s3fifo,rdma_direct", "-o ext_path={folder}/f:64m"]
)
def test_every_number_is_a_metric(rmemcached_server: ServerFactory, tmp_path: Path, options: str) -> None:
    """Every number in stats is a metric or has a reason in LEFT_OUT; every source of a metric is in stats, but for the
    optional statistics."""
    words = options.format(folder=tmp_path).split()
    server = rmemcached_server("-o", "maxconns_fast", "-o", "temporary_ttl=60", *words)
    with Client(server.address, transport="tcp") as client, Client(server.address) as reader:
        client.set("key", b"value", noreply=False)
        assert reader.get("key") == b"value" and reader.direct
        found = {
            (group, name)
            for group in metrics.GROUPS
            for full, value in targets.read_stats(client, *group.split()).items()
            if targets.number(value) is not None
            for name in [full.rpartition(":")[2]]
        }
    groups = {metrics.ALL_SLABS: "slabs"}
    known = {(groups.get(m.group, m.group), name) for m in metrics.METRICS for name in m.sources}
    assert not found - known - set(metrics.LEFT_OUT)
    assert all(metrics.LEFT_OUT.values())
    optional = {"idle_kicks", "idle_kicks_stalled", "rdma_verbs_queue_pairs", "ghost_hits", "ghost_bytes"}
    optional |= {"small_lru_pct", "huge_pages_made"}
    optional |= {name for _, name in known if "extstore" in name}
    # With -Z; tests/system/test_tls.py sees them.
    optional |= {"ssl_new_sessions", "ssl_handshake_errors", "ssl_proto_errors", "time_since_server_cert_refresh"}
    assert {name for _, name in known - found} <= optional


def test_names_are_used_once() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names))
    assert not {(m.group, name) for m in metrics.METRICS for name in m.sources} & set(metrics.LEFT_OUT)


def test_metrics_keep_the_rules_of_promtool(
    rmemcached_server: ServerFactory, exporter: Callable[..., Exporter]
) -> None:
    """The metrics keep promtool's rules; script/promtool runs promtool itself."""
    server = rmemcached_server()
    with Client(server.address, transport="tcp") as client:
        client.set("key", b"value", noreply=False)
    one = exporter(server.place)
    for family in families(one.text()):
        names = {sample.name for sample in family.samples}
        assert family.documentation.endswith("."), family
        for name in names:
            assert re.fullmatch("[a-z][a-z0-9_]*", name) and not ABBREVIATED.search(name), name
            assert name.endswith("_total") == (family.type == "counter"), name
            assert not name.endswith(("_count", "_sum", "_bucket", "_info_total")), name
            assert not {"gauge", "counter", "histogram"} & set(name.split("_")), name
        rows = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert rows and len(rows) == len(set(rows))
    units = {family.name: family.unit for family in openmetrics(one.text(accept=OPENMETRICS))}
    assert units["memcached_process_user_cpu_seconds"] == "seconds"
    assert units["memcached_current_bytes"] == "bytes" and not units["memcached_current_items"]


def test_values_are_those_of_the_server(rmemcached_server: ServerFactory, exporter: Callable[..., Exporter]) -> None:
    server = rmemcached_server("-m", "64")
    one = exporter(server.place)
    with rdma_client(server) as client:
        client.set("key", bytes(100_000), noreply=False)
        client.get("key")
        client.get("nothing")
        client.cas("key", b"x", 1)
        client.cas("nothing", b"x", 1)
        with Client(server.address, transport="tcp") as plain:
            stats, rdma = targets.read_stats(plain), targets.read_stats(plain, "rdma")
        found = one.values()

    def command(name: str, status: str) -> float:
        return found["memcached_commands_total", (("command", name), ("status", status))]

    assert found[UP] == 1
    assert [command("get", "hit"), command("get", "miss"), command("set", "hit")] == [1, 1, 1]
    assert [command("cas", "badval"), command("cas", "miss"), command("cas", "hit")] == [1, 1, 0]
    assert stats["cmd_set"] == 3 and found["memcached_current_items", ()] == 1
    assert found["memcached_limit_bytes", ()] == 64 << 20
    assert found["memcached_version", (("version", stats["version"].decode()),)] == 1
    assert found["rmemcached_rdma_queue_pairs", ()] == 1
    assert found["rmemcached_rdma_read_bytes_total", ()] == rdma["rdma_read_bytes"] == 100_000
    assert found["rmemcached_rdma_polled_seconds_total", ()] >= rdma["rdma_polled_ns"] * 1e-9
    devices = {dict(labels)["device"] for name, labels in found if name == "rmemcached_rdma_device_info"}
    assert devices == set(rdma["rdma_device"].decode().split(","))
    slabs = {value for (name, _), value in found.items() if name == "memcached_slab_current_items"}
    assert slabs == {1}


def test_one_connection_is_kept(rmemcached_server: ServerFactory, exporter: Callable[..., Exporter]) -> None:
    server = rmemcached_server()
    one = exporter(server.place)
    total = ("memcached_connections_total", ())
    assert len({one.values()[total] for _ in range(3)}) == 1


def test_a_dead_server_is_0_and_is_found_again(exporter: Callable[..., Exporter]) -> None:
    server = start_rmemcached()
    one = exporter(server.place)
    try:
        assert one.values()[UP] == 1
        server.stop()
        dead = one.values()
        assert dead.pop(UP) == 0 and {name for name, _ in dead} == {"rmemcached_exporter_scrape_seconds"}
        assert "Connection refused" in one.stderr.readline()
        port = server.port
        server = Server(server.command, port)
        assert one.values()[UP] == 1
        assert one.stderr.readline().endswith("answers again\n")
        # The server restarts between two scrapes, so the exporter's kept connection has ended.
        server.stop()
        server = Server(server.command, port)
        assert one.values()[UP] == 1
    finally:
        server.stop()


def test_a_server_that_says_nothing_is_given_up(exporter: Callable[..., Exporter]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = exporter(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2").values()
    assert found[UP] == 0
    assert found["rmemcached_exporter_scrape_seconds", ()] < 5


def test_a_server_that_never_ends_its_answer(
    scripted: Callable[..., Scripted], exporter: Callable[..., Exporter]
) -> None:
    """Lines come in time, but the last line never comes: each scrape gives up the answer, and the server counts as
    down."""

    def answers(line: bytes) -> Iterator[bytes]:
        number = 0
        while not server.ended.wait(0.1):
            yield b"STAT x%d 1\r\n" % number
            number += 1

    server = scripted(answers)
    one = exporter(server.place, "--timeout", "0.3")
    found: list[Values] = []
    scrapes = [threading.Thread(target=lambda: found.append(one.values())) for _ in range(3)]
    for thread in scrapes:
        thread.start()
    for thread in scrapes:
        thread.join(20)
    assert [values[UP] for values in found] == [0] * 3
    assert one.stderr.readline().startswith(f"rmemcached-exporter: {server.place}: TimeoutError: ")


@pytest.mark.parametrize("refusal", [b"CLIENT_ERROR no", b"SERVER_ERROR no", b"ERROR"])
def test_strange_answers(refusal: bytes, scripted: Callable[..., Scripted], exporter: Callable[..., Exporter]) -> None:
    """A missing or strange statistic costs its own metric and no others."""

    def answers(line: bytes) -> Iterator[bytes]:
        yield {
            b"stats": b'STAT version 1"\\\xff\x1b[2J\r\nSTAT uptime nan\r\nSTAT bytes 5\r\nSTAT get_hits \r\nEND\r\n',
            b"stats items": b'STAT items:a"b\\:number 5\r\nSTAT foo 3\r\nEND\r\n',
            b"stats rdma": b"STAT rdma_device a,b\r\nEND\r\n",
        }.get(line, refusal + b"\r\n")

    found = exporter(scripted(answers).place).values()
    assert found[UP] == 1 and found["memcached_current_bytes", ()] == 5


def test_strange_numbers_and_classes(scripted: Callable[..., Scripted], exporter: Callable[..., Exporter]) -> None:
    """Impossible numbers and classes, and commands for a terminal, do not get through."""

    def answers(line: bytes) -> Iterator[bytes]:
        huge = b"1" + b"0" * 400
        yield {
            b"stats": b"STAT threads %s\r\nSTAT curr_items -inf\r\nSTAT bytes 5\r\nSTAT version \x1b[2J\r\n" % huge,
            b"stats slabs": b"".join(
                b"STAT %d:chunk_size 96\r\nSTAT x%d:chunk_size 1\r\n" % (n, n) for n in range(1000)
            ),
        }.get(line, b"") + b"END\r\n"

    one = exporter(scripted(answers).place)
    found = one.values()
    assert found[UP] == 1 and found["memcached_current_bytes", ()] == 5
    assert not {"rmemcached_threads", "memcached_current_items"} & {name for name, _ in found}
    assert sum(name == "memcached_slab_chunk_size_bytes" for name, _ in found) == 100
    assert "\x1b" not in one.text()


def test_targets(
    rmemcached_server: ServerFactory, memcached_server: ServerFactory, exporter: Callable[..., Exporter], tmp_path: Path
) -> None:
    """The exporter scrapes the targets of the command line and of --allow only."""
    first, third = rmemcached_server("-m", "64"), memcached_server("-m", "65")
    second = rmemcached_server("-m", "66", path=str(tmp_path / "socket"))
    one = exporter(first.place, f"unix://{second.path}", "--allow", f"127.0.0.*:{third.port}")
    limit = ("memcached_limit_bytes", ())
    servers = [first.place, f"unix://{second.path}", third.place]
    assert [one.scrape(server)[limit] for server in servers] == [size << 20 for size in (64, 66, 65)]
    assert one.values()[limit] == 64 << 20
    assert not [name for name, _ in one.scrape(third.place) if name.startswith("rmemcached_rdma")]
    for path, status in (
        (f"/scrape?target=127.0.0.1:{free_port()}", 403),
        (f"/scrape?target=127.0.0.example.com:{third.port}", 403),
        ("/scrape", 400),
        ("/scrape?target=a&target=b", 400),
        ("/nothing", 404),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            one.text(path)
        assert refused.value.code == status
        refused.value.close()
    assert f"/scrape?target={first.place}" in one.text("/").splitlines()


def test_clients_that_leave_are_no_failure(rmemcached_server: ServerFactory, exporter: Callable[..., Exporter]) -> None:
    """Probes of a port end their connections by a reset, in any state. The log, stderr, has nothing about them."""
    one = exporter(rmemcached_server().place)
    for said in (b"", b"GET /metrics", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", one.port)) as probe:
            probe.sendall(said)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert one.values()[UP] == 1
    one.process.terminate()
    assert one.process.wait(20) == 0 and one.stderr.read() == ""


def test_a_target_cannot_write_to_the_terminal(exporter: Callable[..., Exporter]) -> None:
    one = exporter("127.0.0.1:1", "--allow", "**:1")
    with pytest.raises(urllib.error.HTTPError) as refused:
        one.scrape("127.0.0.1\x1b[2J:1")
    assert refused.value.code == 400
    refused.value.close()
    assert one.scrape("127.0.0.1\x9b2J:1")[UP] == 0
    line = one.stderr.readline()
    assert line.startswith("rmemcached-exporter: 127.0.0.1\\x9b2J:1: ") and line.strip().isprintable()


def test_password(rmemcached_server: ServerFactory, exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    (tmp_path / "users").write_text("user:pass\n")
    (tmp_path / "password").write_text("pass\n")
    server = rmemcached_server("-Y", str(tmp_path / "users"))
    options = ("--username", "user", "--password-file", str(tmp_path / "password"))
    assert exporter(server.place, *options).values()[UP] == 1
    assert exporter(server.place).values()[UP] == 0
    by_url = exporter(f"memcached://user:pass@{server.place}")
    assert by_url.values()[UP] == 1 and by_url.scrape(f"memcached://user:***@{server.place}")[UP] == 1
    assert "pass@" not in by_url.text("/")


def test_password_for_sasl(
    rmemcached_server: ServerFactory,
    exporter: Callable[..., Exporter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "users").write_text("user:pass\n")
    (tmp_path / "password").write_text("pass\n")
    monkeypatch.setenv("MEMCACHED_SASL_PWDB", str(tmp_path / "users"))
    server = rmemcached_server("-S")
    options = ("--username", "user", "--password-file", str(tmp_path / "password"))
    assert exporter(server.place, "--sasl", *options).values()[UP] == 1
    assert exporter(server.place, *options).values()[UP] == 0


def test_tls(rmemcached_server: ServerFactory, exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    make_certificate(tmp_path / "ca.pem")
    with TlsRelay(rmemcached_server(), tmp_path / "ca.pem") as relay:
        server = f"127.0.0.1:{relay.port}"
        assert exporter(server, "--tls-ca", str(tmp_path / "ca.pem")).values()[UP] == 1
        assert exporter(server, "--tls").values()[UP] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["host:x"], "'host:x': the port must be"),
        (["--timeout", "0"], "a number of seconds above 0 is needed, not '0'"),
        (["--listen", "here"], "[HOST]:PORT is needed, not 'here'"),
        (["--username", "user"], "--username and --password-file are given together"),
        (["--sasl"], "--sasl needs --username and --password-file"),
        (["--tls", "--transport", "rdma_cm"], "tls_context does not go with rdma_cm"),
        (["memcached://user:secret@host:x"], "memcached://user:***@host:x"),
    ],
)
def test_wrong_options_end_with_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert said in stderr.splitlines()[-1] and "secret" not in stderr


def named_metrics(query: str) -> set[str]:
    return set(re.findall(r"\br?memcached_\w+", query))


def exported() -> set[str]:
    return {metric.name for metric in metrics.METRICS} | {"memcached_up", "rmemcached_exporter_scrape_seconds"}


def test_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((ROOT / "contrib/grafana/rmemcached.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    labels = {metric.name: set(metric.all_labels) for metric in metrics.METRICS}
    assert len(queries) > 20
    for query in queries + [
        variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"
    ]:
        names = named_metrics(query)
        assert names and names <= exported(), query
        known = {"instance"}.union(*(labels.get(name, set()) for name in names))
        used = {word.strip() for group in re.findall(r"by \(([^)]*)\)", query) for word in group.split(",")}
        assert used | set(re.findall(r'(\w+)=~?"', query)) <= known, query


def alerts() -> list[str]:
    return re.findall(r"expr: (.*)", (ROOT / "contrib/prometheus/rmemcached.rules.yml").read_text())


def test_values_on_flash_are_watched() -> None:
    """The statistics that docs/operators.md names for values on flash are on the dashboard, and their faults alert."""
    names = {statistic: metric.name for metric in metrics.METRICS for statistic in metric.sources}
    page = (ROOT / "docs/operators.md").read_text().partition("## Values on flash")[2].partition("\n## ")[0]
    wanted = {names[word] for word in re.findall(r"`(\w*extstore\w*)`", page)}
    board = json.loads((ROOT / "contrib/grafana/rmemcached.json").read_text())
    shown = {name for panel in board["panels"] for target in panel["targets"] for name in named_metrics(target["expr"])}
    assert len(wanted) > 4 and wanted <= shown
    told = {name for query in alerts() for name in named_metrics(query)}
    assert {names[word] for word in ("extstore_io_errors", "badcrc_from_extstore", "extstore_compact_lost")} <= told


def test_the_alerts_name_metrics_that_exist() -> None:
    queries = alerts()
    assert queries and all(named_metrics(query) and named_metrics(query) <= exported() for query in queries)
