"""The gate on TLS: a bystander without TLS on the same worker. harness.py lists the assertions of each case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import attack_tls
import pytest
from certificates import Authority, Signed
from harness import KB, MB, Case, Limits, for_connections, run_case, scene_of
from servers import HOST, Server, free_port

SESSION = 24 * KB
CASES = (
    Case("a storm of handshakes", attack_tls.storm, {"processes": 4}, for_connections(16, SESSION, memory=4 * MB)),
    # malloc keeps free memory between the pieces of sessions in use.
    Case(
        "half handshakes",
        attack_tls.half_handshakes,
        {"count": 200},
        for_connections(200, 64 * KB, memory=4 * MB),
        after=Limits(memory=16 * MB),
    ),
    Case(
        "half records",
        attack_tls.half_records,
        {"count": 200},
        for_connections(200, 48 * KB, memory=16 * MB),
        after=Limits(memory=16 * MB),
    ),
    Case("records of a byte", attack_tls.tiny_records, {}, for_connections(1, SESSION, memory=4 * MB)),
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def gate(rmemcached_server: Callable[..., Server], certificate: Signed, case: Case) -> None:
    plain = free_port()
    files = f"ssl_chain_cert={certificate.certificate},ssl_key={certificate.key}"
    server = rmemcached_server("-t", "1", "-m", "64", "-l", f"notls:{HOST}:{plain}", "-Z", "-o", files)
    port, server.port = server.port, plain
    with scene_of(server, ["tcp", "soft_shm"]) as scene:
        run_case(scene, replace(case, arguments={**case.arguments, "port": port}))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(rmemcached_server: Callable[..., Server], authority: Authority, case: Case) -> None:
    gate(rmemcached_server, authority.sign("server"), case)


def test_a_storm_with_a_costly_key(rmemcached_server: Callable[..., Server], authority: Authority) -> None:
    """A signature with this key takes some milliseconds."""
    gate(rmemcached_server, authority.sign("costly", "rsa4096"), CASES[0])
