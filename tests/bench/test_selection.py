"""rmemcached-bench selection fails for a slower build, and cannot pass without measuring."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from bench_runs import run

from rmemcached.bench import selection
from rmemcached.bench.document import Document, Record, processor
from rmemcached.bench.errors import BenchError

CASE = "get, pipelined by 16"
QUICK = ("--seconds", "0.01", "--turns", "1", "--items", "2000")


def made(ours: list[float], memcached: str = "memcached 1.6.18", case: str = CASE) -> Document:
    """A document of a case; the peers take 1 us each."""
    record = Record("selection", [], "memcached")
    record.contender({"name": "rmemcached", "server": "rmemcached 1", "client": "", "command": [], "floor": False})
    record.contender({"name": "memcached", "server": memcached, "client": "", "command": [], "floor": False})
    record.floor("floor: tcp", "a floor")
    columns = {"rmemcached": ours, "memcached": [1.0] * len(ours), "floor: tcp": [1.0] * len(ours)}
    samples = [
        {
            "case": case,
            "contender": name,
            "round": number,
            "turn": 1,
            "values": {selection.case_of(case).figures[0].name: value},
        }
        for name, values in columns.items()
        for number, value in enumerate(values, 1)
    ]
    record.case(selection.case_of(case), samples)
    return record.finished()


def expected(*lines: tuple[str, str, float], machine: str | None = None) -> list[dict[str, Any]]:
    """A record of this machine, or of the named machine."""
    ratios = [{"case": CASE, "to": to, "version": of, "ratio": at, "spread": 0.2} for to, of, at in lines]
    return [{"machine": machine or HERE, "runs": 2, "ratios": ratios}]


HERE = selection.kind_of(Record("selection", [], "memcached").document)
BOTH = expected(("memcached", "memcached 1.6.18", 0.5), ("floor: tcp", "", 0.5))


@pytest.mark.parametrize("ratio, worse", [(0.4, []), (0.5, []), (0.59, []), (0.61, [CASE]), (5.0, [CASE])])
def test_worse_is_beyond_the_spread(ratio: float, worse: list[str]) -> None:
    lines, found = selection.judge(made([ratio] * 5), BOTH, [CASE])
    assert found == worse and len(lines) == 2
    assert all(line.startswith("WORSE" if worse else "ok") for line in lines)
    # A single disturbed round does not change the verdict.
    assert selection.judge(made([ratio, ratio, ratio, ratio, 9.0]), BOTH, [CASE])[1] == worse


def test_what_has_become_better_is_said() -> None:
    assert len(selection.faster(made([0.3] * 5), BOTH)) == 2 and not selection.faster(made([0.45] * 5), BOTH)


def test_another_memcached_is_no_peer_but_the_floor_is() -> None:
    lines, worse = selection.judge(made([0.7] * 5, "memcached 1.6.45"), BOTH, [CASE])
    assert lines[0] == f"not judged: {CASE}: recorded beside memcached 1.6.18, here is memcached 1.6.45"
    assert worse == [CASE] and lines[1].startswith("WORSE")


def test_it_cannot_pass_without_judging() -> None:
    for nothing in (expected(), expected(("memcached", "memcached 1.6.18", 0.5))):
        with pytest.raises(BenchError, match=rf"{CASE}: expected\.json has no ratio of it"):
            selection.judge(made([0.1] * 5, "memcached 1.6.45"), nothing, [CASE])
    with pytest.raises(BenchError, match="the run has no ratio to memcached"):
        selection.judge(made([0.1] * 5, case="set, pipelined by 16"), BOTH, [CASE])
    with pytest.raises(BenchError, match=r"expected\.json has no ratio of it"):
        selection.judge(made([0.1] * 5), BOTH, [CASE, "set, pipelined by 16"])


def test_what_is_recorded_is_judged_as_the_same() -> None:
    runs = [made([ratio] * 5) for ratio in (0.5, 0.55, 0.45, 0.5)]
    found = selection.recorded(runs)
    assert [(line["to"], line["ratio"], line["spread"]) for line in found["ratios"]] == [
        ("memcached", 0.5, 0.2),
        ("floor: tcp", 0.5, 0.2),
    ]
    assert not any(selection.judge(each, [found], [CASE])[1] for each in runs)
    # Equal runs still get a spread of 0.15: they prove nothing about another machine.
    assert {line["spread"] for line in selection.recorded([made([0.5] * 5)] * 3)["ratios"]} == {0.15}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"records": []}', '{"records": [{"machine": "a", "ratios": [{"case": "a", "to": "b"}]}]}'],
)
def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "expected.json"
    path.write_text(text)
    with pytest.raises(BenchError, match="was not written by --record"):
        selection.read_expected(str(path))
    words = ("selection", "--record", "--expected", str(path))
    assert "was not written by --record" in run(*words, status=1).stderr, "before it measures"
    assert path.read_text() == text


def test_another_machine_is_judged_by_the_most_lenient_record() -> None:
    both = [
        *expected(("memcached", "memcached 1.6.18", 0.5), ("floor: tcp", "", 0.4), machine="one"),
        *expected(("memcached", "memcached 1.6.45", 0.9), ("floor: tcp", "", 0.5), machine="other"),
    ]
    for ratio, worse in ((0.74, []), (0.76, [CASE])):
        lines, found = selection.judge(made([ratio] * 5), both, [CASE])
        assert lines[0].startswith(f"no record of {HERE}: judged leniently, by those of one; other")
        assert found == worse and len(lines) == 3
        assert all("recorded 0.500, at most 0.750" in line for line in lines[1:]), "the installed memcached's alone"
    assert not selection.faster(made([0.1] * 5), both), "nothing is recorded that could be kept"
    # With a record of this machine the records of other machines do not matter.
    known = [*both, *BOTH]
    assert selection.judge(made([0.61] * 5), known, [CASE])[1] == [CASE]
    assert not selection.judge(made([0.61] * 5), known, [CASE])[0][0].startswith("no record")


def test_memory_is_judged_more_closely_on_another_machine() -> None:
    record = expected(("floor: tcp", "", 1.0), machine="one")
    record[0]["ratios"][0] |= {"case": selection.ITEM, "spread": 0.03}
    for ratio, worse in ((1.09, []), (1.11, [selection.ITEM])):
        assert selection.judge(made([ratio] * 5, case=selection.ITEM), record, [selection.ITEM])[1] == worse


def test_a_record_of_this_machine_replaces_its_own_only(tmp_path: Path) -> None:
    path = tmp_path / "expected.json"
    for ratio in (0.5, 0.7):
        others = [*expected(("floor: tcp", "", 0.3), machine="other"), *BOTH]
        path.write_text(json.dumps({"records": others}))
        selection.write_expected(str(path), [made([ratio] * 5)] * 2)
        found = {record["machine"]: record["ratios"] for record in selection.read_expected(str(path))}
        assert found.keys() == {"other", HERE} and found["other"] == others[0]["ratios"]
        assert {line["ratio"] for line in found[HERE]} == {ratio}


def test_one_core_is_a_machine_of_its_own() -> None:
    found = made([0.5] * 5)
    for cores, other in ((1, True), (2, False), (64, False)):
        found["machine"] |= {"cores": cores, "python": "CPython 3.14.0rc1"}
        assert selection.kind_of(found) == f"{processor()}, CPython 3.14{', one core' if other else ''}"


def test_processors_of_one_name_are_told_apart() -> None:
    x86 = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) Processor\n\nprocessor\t: 1\n"
    assert processor(x86) == "Intel(R) Xeon(R) Processor (family 6, model 85)"
    assert processor("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n").endswith(
        " (CPU implementer 0x41, CPU part 0xd0c)"
    )
    assert processor("") and "(" not in processor("")


def test_the_recorded_file_has_every_case() -> None:
    for found in selection.read_expected(str(selection.EXPECTED)):
        floored = {line["case"] for line in found["ratios"] if line["to"].startswith("floor")}
        assert floored == set(selection.CASES)
        assert all(line["spread"] < 1 for line in found["ratios"]), "a ratio that may double shows nothing"


def test_a_slowed_build_fails() -> None:
    """A server slowed by -vv, which writes each request to a file, fails."""
    words = ("selection", "--rounds", "2", "--seconds", "0.05", "--cases", CASE)
    slowed = run(*words, "--flags=-vv", status=1).stderr
    assert f"WORSE: {CASE}" in slowed and f"once more, in 4 rounds: {CASE}" in slowed
    assert slowed.rstrip().splitlines()[-1].startswith("WORSE"), "the second run judged too"


def test_it_records_all_cases(tmp_path: Path) -> None:
    path = tmp_path / "expected.json"
    run("selection", "--record", "--runs", "2", "--rounds", "1", *QUICK, "--expected", str(path))
    (found,) = selection.read_expected(str(path))
    known = selection.read_expected(str(selection.EXPECTED))[0]
    assert found["machine"] == HERE
    pairs = [[(line["case"], line["to"]) for line in each["ratios"]] for each in (found, known)]
    assert pairs[0] == pairs[1] and found["runs"] == 2


def test_ratios_are_of_the_medians_of_rounds() -> None:
    (ratios,) = {tuple(each) for each in selection.ratios(made([1.0, 2.0, 9.0])).values()}
    assert ratios == (1.0, 2.0, 9.0) and statistics.median(ratios) == 2
