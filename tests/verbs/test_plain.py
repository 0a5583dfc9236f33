"""Unmodified programs of libibverbs on the software devices: the library without Python, and rmemcached-verbs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from verbs_ends import PATIENCE

import rmemcached
from rmemcached.verbs import Context, devices
from rmemcached.verbs.launch import OURS, real_library

pytestmark = pytest.mark.once

PACKAGES = Path(rmemcached.__file__).parent.parent
# The interpreter itself: under a sanitizer sys.executable is a script, and Python removes the script's variables.
PYTHON = os.readlink("/proc/self/exe")
SYSTEM_PYTHON = "/usr/bin/python3"  # the interpreter with pyverbs
DEVICES = ["soft_iw0", "soft_shm0"]
# A public function of libibverbs: two @ mark the version of programs linked today.
SYMBOL = re.compile(r" (\w+)@@(IBVERBS_1\.\d+)")


def readelf(*arguments: str | Path) -> str:
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\) +Shared library: \[(.+)\]", readelf("-d", library))


def environment() -> dict[str, str]:
    """The environment of the launcher. A sanitizer's library comes before the libraries with the sanitizer's calls."""
    found = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    if sanitizer := [name for name in needed(OURS) if re.fullmatch(r"lib[at]san\.so\.\d+", name)]:
        found |= {"LD_PRELOAD": sanitizer[0], "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
    return found


def command(*words: str) -> list[str]:
    return [PYTHON, "-P", "-m", "rmemcached.verbs.launch", *words]


def launch(*words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, *command(*words)], env=environment(), capture_output=True, text=True, timeout=60)


def output(*words: str) -> str:
    done = launch(*words)
    assert done.returncode == 0, done
    return done.stdout


def functions(library: Path) -> dict[str, str]:
    """The version of each public function of the library."""
    lines = readelf("--dyn-syms", library).splitlines()
    return {found[1]: found[2] for line in lines if " UND " not in line and (found := SYMBOL.search(line))}


def versions(library: Path) -> set[str]:
    """The versions defined by the library."""
    defined = readelf("-V", library).partition("Version needs")[0]
    return set(re.findall(r"Name: (IBVERBS_\w+(?:\.\d+)?)", defined))


def test_the_library_has_no_python() -> None:
    """No symbol begins with Py, also none that the linker could have left, and libc and libisal are all it needs."""
    names = re.findall(r"(\S+)$", readelf("--symbols", OURS), re.MULTILINE)
    assert "ibv_open_device@@IBVERBS_1.1" in names
    assert [name for name in names if re.match(r"_?Py[A-Z_]", name)] == []
    allowed = re.compile(r"libc\.so\.6|ld-linux\S+|libisal\S*\.so\.2|lib(a|t|ub)san\.so\.\d+|libgcc_s\.so\.1")
    assert [name for name in needed(OURS) if not allowed.fullmatch(name)] == []
    flags = readelf("-d", OURS)
    assert "Library soname: [libibverbs.so.1]" in flags and "NODELETE" in flags


def test_the_library_has_every_function_and_version() -> None:
    """The functions of the machine's libibverbs up to release 44, each under its version, and none besides them."""
    ours, real = functions(OURS), functions(real_library())
    later = {name for name, version in real.items() if int(version.partition(".")[2]) > 14}
    assert {name: version for name, version in real.items() if name not in later} == ours
    assert len(ours) == 75
    assert versions(real_library()) | {"IBVERBS_PRIVATE_14", "IBVERBS_PRIVATE_90"} <= versions(OURS)
    # libmlx5 and pyverbs call this private function for any context.
    assert len(re.findall(r" ibv_query_gid_type@IBVERBS_PRIVATE_\d+", readelf("--dyn-syms", OURS))) == 77


def test_devinfo_shows_the_devices() -> None:
    shown = output("ibv_devinfo", "-v")
    parts = dict(part.split("\n", 1) for part in re.split(r"^hca_id:\s+", shown, flags=re.MULTILINE)[1:])
    assert [name for name in parts if name in DEVICES] == DEVICES
    for name in DEVICES:
        values = dict(re.findall(r"^\s+(\w+):\s+(.*)$", parts[name], re.MULTILINE))
        assert values["fw_ver"] == rmemcached.__version__
        assert values["node_guid"] == values["sys_image_guid"] != "0000:0000:0000:0000"
        assert values["transport"].startswith("iWARP" if name == "soft_iw0" else "InfiniBand")
        assert values["state"].startswith("PORT_ACTIVE") and values["link_layer"] == "Ethernet"
        with Context(name) as context:
            limits, port = context.query_device(), context.query_port()
        assert int(values["max_qp"]) == limits["max_qp"] and int(values["max_sge"]) == limits["max_sge"]
        assert int(values["max_cqe"]) == limits["max_cqe"] and int(values["phys_port_cnt"]) == 1
        assert values["max_msg_sz"] == hex(port["max_msg_sz"])
        kind = ", RoCE v2" if name == "soft_shm0" else ""
        assert re.search(rf"GID\[ +0\]:\s+(::ffff:127.0.0.1{kind}|0000:.*)$", parts[name], re.MULTILINE), parts[name]
    guids = set(re.findall(r"node_guid:\s+(\S+)", shown))
    assert len(guids) == len(parts)


def test_devices_are_listed() -> None:
    listed = output("ibv_devices")
    assert re.findall(r"^\s+(soft_\w+)\s+[0-9a-f]{16}$", listed, re.MULTILINE) == DEVICES == devices()
    assert output("--devices", "--only").splitlines() == [f"{name}: {OURS}" for name in DEVICES]
    # The system's devices come from the machine's library.
    with_real = output("--devices").splitlines()
    assert with_real[:2] == [f"{name}: {OURS}" for name in DEVICES]
    assert all(line.endswith(f": {real_library()}") for line in with_real[2:])
    done = launch("-v", "--only", "ibv_devices")
    assert done.returncode == 0 and done.stderr.splitlines() == [f"{name}: {OURS}" for name in DEVICES]
    # Within a program of rmemcached-verbs the real library is found again.
    assert output(*command("--devices", "--only")).splitlines() == [f"{name}: {OURS}" for name in DEVICES]


DLOPEN = """
import ctypes, os
library = ctypes.CDLL("libibverbs.so.1", mode=os.RTLD_LOCAL)
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_get_device_name.restype = ctypes.c_char_p
count = ctypes.c_int()
found = library.ibv_get_device_list(ctypes.byref(count))
print(*(library.ibv_get_device_name(ctypes.c_void_p(found[i])).decode() for i in range(count.value)))
assert not found[count.value]
library.ibv_free_device_list(found)
# A function with its version, as NCCL asks for it.
dlvsym = ctypes.CDLL(None).dlvsym
dlvsym.restype = ctypes.c_void_p
handle = ctypes.c_void_p(library._handle)
assert dlvsym(handle, b"ibv_open_device", b"IBVERBS_1.1") and not dlvsym(handle, b"ibv_open_device", b"IBVERBS_1.5")
"""


def test_a_program_that_loads_the_library_itself() -> None:
    assert output("--only", SYSTEM_PYTHON, "-c", DLOPEN).split() == DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("program", ["ib_send_lat", "ib_write_bw"])
def test_perftest_starts(program: str, device: str) -> None:
    """perftest's programs need libmlx5 and libefa, and want every symbol at their start. They open the device."""
    assert "BIND_NOW" in readelf("-d", f"/usr/bin/{program}") and "libmlx5.so.1" in needed(Path(f"/usr/bin/{program}"))
    done = launch(program, "-d", "none0")
    assert done.returncode != 0 and "IB device none0 not found" in done.stdout + done.stderr
    with subprocess.Popen(
        command("stdbuf", "-oL", program, "-d", device, "-p", "0"), env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("Waiting for client to connect" in line for line in lines), process.wait(PATIENCE)
        process.terminate()


PYVERBS = """
import sys
from pyverbs.addr import AHAttr, AH, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import ECE, QP, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.xrcd import XRCD, XRCDInitAttr
import pyverbs.enums as e
import os

name = sys.argv[1]
context = Context(name=name)
attr, extended = context.query_device(), context.query_device_ex()
assert attr.vendor_id == 0xffffff and attr.vendor_part_id == 42 and attr.node_guid == extended.orig_attr.node_guid != 0
assert extended.phys_port_cnt_ex == 1
(entry,) = context.query_gid_table(16)
assert (entry.gid_index, entry.port_num) == (0, 1) and entry.gid_type == (2 if name == "soft_shm0" else 0)
assert context.query_gid_type(1, 0) == (name == "soft_shm0")
assert context.query_gid_ex(1, 0).gid_str() == context.query_gid(1, 0).gid
assert context.query_pkey(1, 0) == 0xffff
assert context.query_port(1).link_layer == e.IBV_LINK_LAYER_ETHERNET
pd = PD(context)
region = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
region.write("text", 4)
assert region.read(4, 0) == b"text" and region.lkey == region.rkey
channel = CompChannel(context)
queue = CQ(context, 16, None, channel)
queue.req_notify()
assert queue.poll() == (0, [])
queue.resize(32)
shared = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
pair = QP(pd, QPInitAttr(scq=queue, rcq=queue, cap=QPCap(), qp_type=e.IBV_QPT_RC))
assert pair.qp_state == e.IBV_QPS_RESET and pair.qp_num > 1
assert pair.query_data_in_order(e.IBV_WR_SEND, 0) == 0

def unsupported(call):
    try:
        call()
    except PyverbsRDMAError as error:
        assert error.error_code == 95, error
    else:
        raise AssertionError("it worked")

route = AHAttr(gr=GlobalRoute(dgid=context.query_gid(1, 0)), is_global=1, port_num=1)
unsupported(lambda: AH(pd, attr=route))
unsupported(lambda: CQEX(context, CqInitAttrEx()))
unsupported(lambda: ParentDomain(context, ParentDomainInitAttr(pd=pd)))
unsupported(lambda: XRCD(context, XRCDInitAttr(0x3f, os.O_CREAT, -1)))
unsupported(lambda: QP(pd, QPInitAttr(scq=queue, rcq=queue, cap=QPCap(), qp_type=e.IBV_QPT_UD)))
unsupported(lambda: pair.set_ece(ECE(vendor_id=1)))
window = MW(pd, e.IBV_MW_TYPE_1)
assert window.rkey
window.close()
region.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=0)
for thing in (pair, shared, queue, channel, region, pd, context):
    thing.close()
print("done")
"""


@pytest.mark.parametrize("device", DEVICES)
def test_pyverbs_makes_its_objects(device: str) -> None:
    """Objects and queries in pyverbs; a call without a function fails with EOPNOTSUPP, and never crashes."""
    assert output(SYSTEM_PYTHON, "-c", PYVERBS, device) == "done\n"


def test_our_own_programs_know_their_devices() -> None:
    """For our daemon and client under rmemcached-verbs the software devices are no devices of the system."""
    code = "from rmemcached import verbs; print(*verbs.devices('system'), '/', *verbs.devices())"
    plain = subprocess.run([PYTHON, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert output(PYTHON, "-c", code) == plain.stdout and plain.stdout.split()[-2:] == DEVICES


def test_the_program_has_the_process() -> None:
    """Signals, the status and the descriptors are the program's: it has the launcher's process."""
    assert launch("sh", "-c", "exit 7").returncode == 7
    # The launcher's options end at the program.
    said = output("--only", "--", "sh", "-c", "echo $0 $RMEMCACHED_VERBS_ONLY", "--devices")
    assert said.split() == ["--devices", "1"]
    with subprocess.Popen(command("sh", "-c", "echo $$; read x"), env=environment(), stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and int(process.stdout.readline()) == process.pid
        process.terminate()
        assert process.wait(PATIENCE) == -15


def test_errors_are_one_line(tmp_path: Path) -> None:
    def said(status: int, *words: str, before: Sequence[str] = ()) -> str:
        done = launch(*words, before=before)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done
        return done.stderr

    assert said(127, "no-program") == "rmemcached-verbs: no-program: there is no such program\n"
    foreign, broken = tmp_path / "foreign", tmp_path / "broken"
    head = Path(OURS).read_bytes()[:20]
    foreign.write_bytes(head[:18] + b"\xf3\x00")  # RISC-V
    broken.write_bytes(b"nothing to run")
    for file in (foreign, broken):
        file.chmod(0o755)
    assert "is for another kind of machine" in said(1, str(foreign))
    assert "Exec format error" in said(126, str(broken))
    owned = tmp_path / "owned"
    if os.geteuid() == 0:
        owned.write_bytes(Path("/bin/true").read_bytes())
        os.chown(owned, 65534, 65534)
        owned.chmod(0o4755)
    else:
        owned = Path("/usr/bin/passwd")
    assert "is set-user-id" in said(1, str(owned))
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    hide = f'mount --bind /dev/null {real_library().resolve()} && exec "$@"'
    hidden = ("unshare", "--mount", *user, "sh", "-c", hide, "sh")
    assert "apt-get install libibverbs1" in said(1, "true", before=hidden)
    done = launch()
    assert done.returncode == 2 and done.stderr.endswith("error: a program is needed\n")
