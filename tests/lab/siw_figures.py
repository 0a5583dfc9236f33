"""The figures beside siw, and with lost packets; run by test_siw.py in a guest that has the device siw0."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rmemcached.bench import document

NAMES = ("usiw-6", "usiw-7", "rddp-loss")
CONTENDERS = {"siw", "soft_iw", "TCP"}


def loopback() -> list[object]:
    shown = subprocess.run(["ip", "-d", "-j", "link", "show", "dev", "lo"], check=True, capture_output=True, text=True)
    (link,) = json.loads(shown.stdout)
    return [link[key] for key in ("mtu", "qdisc", "gso_max_segs")]


def test_figures_beside_siw(tmp_path: Path) -> None:
    before = loopback()
    command = [sys.executable, "-P", "-m", "rmemcached.bench", "figures", *NAMES]
    options = ["--netem", "lo", "--quick", "--rounds", "1", "--folder", str(tmp_path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        figures = document.read(f"{tmp_path}/{name}.json")
        assert {row["contender"] for row in figures["results"]} == CONTENDERS
        assert all(row["median"] > 0 for row in figures["results"])
        assert any("QEMU" in note for note in figures["notes"])
    # The interface has its former settings.
    assert loopback() == before


def test_loss_needs_consent() -> None:
    command = [sys.executable, "-P", "-m", "rmemcached.bench", "figures", "rddp-loss"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--netem lo says that lo may lose them" in done.stderr
