"""The statistics of rmemcached-bench against known numbers."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from rmemcached.bench import document, estimate, measure, table, verdict
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Case, Figure, Progress, Round, Steps, Taken

LOWER, HIGHER = Figure("p50_us", "us"), Figure("per_second", "1/s", "higher")


def made(
    columns: dict[str, list[float]], figure: Figure = LOWER, floors: dict[str, str] | None = None
) -> document.Document:
    """A document of a case with these values, round by round; the first contender is the reference."""
    case = Case("a case", {"size": 1}, (figure,), floors or {})
    record = document.Record("latency", [], next(iter(columns)))
    for name in columns:
        if name in case.floors.values():
            record.floor(name, "a floor")
        else:
            record.contender({"name": name, "server": name, "client": "", "command": [], "floor": False})
    samples = [
        {"case": case.name, "contender": name, "round": at + 1, "turn": 1, "values": {figure.name: value}}
        for name, values in columns.items()
        for at, value in enumerate(values)
    ]
    record.case(case, samples[::-1])
    return record.finished()


def row(found: document.Document, contender: str) -> dict[str, Any]:
    (one,) = [row for row in found["results"] if row["contender"] == contender]
    return one


def test_quartiles() -> None:
    assert estimate.quartiles([5, 1, 4, 2, 3]) == (2, 4)
    assert estimate.quartiles([1, 2]) == (1.25, 1.75)
    assert estimate.quartiles([7]) == (7, 7)


def test_interval() -> None:
    assert estimate.interval([1, 2, 3, 4]) is None, "four rounds promise nothing"
    assert estimate.interval([2.0] * 9) == (2, 2)
    # The interval of five rounds ends at the extremes: a resample's median is an extreme with a probability of 0.058,
    # and the interval cuts off less than 0.058 at each end.
    assert estimate.interval([5, 1, 4, 2, 3]) == (1, 5)
    values = [float(value) for value in range(1, 102)]
    low, high = estimate.interval(values) or (0, 0)
    # Of 101 values the 95 % interval of the median is at the ranks 51 -+ 1.96 * sqrt(101) / 2, within a few.
    assert abs(low - 41) <= 3 and abs(high - 61) <= 3
    assert estimate.interval(values) == (low, high), "the same each time"


@pytest.mark.parametrize("count", [5, 7, 9, 15])
def test_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(150):
        low, high = estimate.interval([chance.lognormvariate(0, 0.3) for _ in range(count)]) or (0, 0)
        held += low <= 1 <= high
    assert held / 150 > 0.91


def test_tail() -> None:
    # 2.776 and 1.984 are Student's t of 4 and 99 degrees of freedom.
    assert estimate.tail(5) == pytest.approx(0.00096, rel=0.1)
    assert estimate.tail(100) == pytest.approx(0.0231, rel=0.02)


def test_results_are_of_paired_rounds() -> None:
    """Rounds that are slow for both contenders do not widen the interval of the ratio."""
    slow = [10.0, 20.0, 40.0, 10.0, 80.0, 30.0, 10.0]
    found = made({"memcached": slow, "half": [value / 2 for value in slow], "echo": slow}, floors={"half": "echo"})
    half = row(found, "half")
    assert half["median"] == 10 and half["ratio"] == 0.5 and half["interval"] == (0.5, 0.5)
    assert half["noise"] is False and half["to_floor"] == 0.5
    assert row(found, "memcached")["ratio"] is None and row(found, "memcached")["to_floor"] is None
    assert row(found, "echo")["ratio"] is None


def test_noise_is_marked() -> None:
    equal = made({"memcached": [10, 11, 10, 9, 10], "tcp": [10, 10, 11, 10, 9]})
    assert row(equal, "tcp")["noise"] is True
    few = made({"memcached": [10, 11], "tcp": [5, 5]})
    assert row(few, "tcp")["noise"] is None and row(few, "tcp")["interval"] is None
    clear = made({"memcached": [10, 11, 10, 9, 10], "tcp": [5, 5, 5, 5, 5]})
    marks = [table.ratio(row(found, "tcp"))[-1] for found in (equal, few, clear)]
    assert marks[:2] == ["~", "?"] and marks[2].isdigit()


def test_a_reference_of_zero_gives_no_ratio() -> None:
    assert row(made({"memcached": [0, 0, 0, 0, 0], "tcp": [1, 1, 1, 1, 1]}), "tcp")["ratio"] is None


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_turns_are_balanced(count: int) -> None:
    names = [str(number) for number in range(count)]
    rounds = [measure.order(names, number) for number in range(2 * count)]
    assert all(sorted(turns) == names for turns in rounds)
    assert all([turns[place] for turns in rounds].count(name) == 2 for place in range(count) for name in names)
    if count > 1:
        assert rounds[0] != rounds[1]


def test_histograms_are_merged() -> None:
    first, second = range(1000, 901_000, 1000), range(901_000, 1_001_000, 1000)
    total = measure.merged([measure.encoded(first), measure.encoded(second)])
    assert total.get_total_count() == 1000
    for percentile, value in ((50, 500_000), (90, 900_000), (99, 990_000), (99.9, 999_000)):
        assert abs(total.get_value_at_percentile(percentile) / value - 1) < 0.002
    assert abs(total.get_max_value() / 1_000_000 - 1) < 0.002


def test_warm_up_is_not_among_the_samples() -> None:
    case = Case("a case", {}, (LOWER,))
    asked: dict[str, list[int]] = {"a": [], "b": []}

    def run_of(name: str) -> measure.Run:
        def run(number: int) -> Taken:
            asked[name].append(number)
            return Taken({"p50_us": float(number)}, [number * 1000] if number else [])

        return run

    heard: list[float] = []
    steps = Steps(8, lambda part, what: heard.append(part))
    now = Round(3, turns=3, seed=5)
    samples = measure.take_turns(case, {name: run_of(name) for name in asked}, now, steps)
    assert asked == {"a": [0, 7, 8, 9], "b": [0, 7, 8, 9]}, "another round has other numbers"
    assert len(samples) == 6 and {sample["values"]["p50_us"] for sample in samples} == {7, 8, 9}
    assert {sample["round"] for sample in samples} == {3} and [sample["turn"] for sample in samples] == [*range(1, 7)]
    assert [sample["contender"] for sample in samples] == [*itertools.chain(*Round(3, 3, 5).orders("ab", "a case"))]
    assert all("histogram" in sample for sample in samples)
    assert heard == [number / 8 for number in range(1, 9)]


def test_orders_come_from_the_seed() -> None:
    names = [str(number) for number in range(8)]
    first = Round(1, 1, seed=1).orders(names, "a case")
    assert first == Round(1, 1, seed=1).orders(names, "a case")
    others = [Round(1, 1, seed=2).orders(names, "a case"), Round(1, 1, seed=1).orders(names, "another")]
    assert all(sorted(other[0]) == names and other != first for other in others)
    assert Round(4, seed=3).shuffled(names) == Round(4, seed=3).shuffled(names) != Round(5, seed=3).shuffled(names)
    # Over the turns of all rounds each name has each place equally often.
    turns = [order for number in range(1, 9) for order in Round(number, 2, 7).orders(names, "a case")]
    assert all([order[place] for order in turns].count(name) == 2 for place in range(8) for name in names)


def test_a_round_is_the_unit() -> None:
    """A process has a single value for repeated measurements: ten turns do not count as ten rounds."""
    found = made({"memcached": [1.0, 1.0], "tcp": [1.0, 2.0]})
    found["samples"] += [{**found["samples"][0], "values": {"p50_us": value}} for value in (5.0, 9.0)]
    assert document.values_of(found, "a case", "tcp", "p50_us") == [1.0, 5.0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals() -> None:
    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        bar = Progress(stream)
        bar.show(0.25, "one")
        assert (" left" in stream.getvalue()) == shown
        bar.show(1.0, "more")
        bar.end()
        assert stream.getvalue().endswith("\r\x1b[K") == shown
        assert ("0:00 left" in stream.getvalue()) == shown


def test_rank_test() -> None:
    # Of C(10, 5) = 252 orders a single order has U = 0, a single order U = 1, and two have U = 2.
    assert estimate.rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert estimate.rank_test([1, 2, 3, 5, 6], [4, 7, 8, 9, 10]) == pytest.approx(2 * 4 / 252)  # U = 2
    assert estimate.rank_test([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(2 / 252)
    assert estimate.rank_test([1, 2, 3], [1, 2, 3]) == 1
    assert sum(estimate.arrangements(7, 7)) == math.comb(14, 7)
    every = [
        sum(a < b for a in rest for b in one)
        for one in itertools.combinations(range(7), 3)
        for rest in [set(range(7)) - set(one)]
    ]
    assert estimate.arrangements(3, 4) == [every.count(u) for u in range(13)]


def test_many_comparisons_of_the_same_find_nothing() -> None:
    """In 100 runs of 40 figures each of the same build, hardly any run seems changed."""
    chance = random.Random(3)
    wrong = 0
    for _ in range(100):
        chances = [
            estimate.rank_test([chance.gauss() for _ in range(7)], [chance.gauss() for _ in range(7)])
            for _ in range(40)
        ]
        wrong += any(estimate.significant(chances))
    assert wrong <= 12
    assert estimate.significant([0.5, 0.0001, 0.2, 0.04]) == [False, True, False, False]
    assert estimate.significant([]) == []


def test_the_interval_of_a_change() -> None:
    low, high = estimate.change_interval([10, 11, 9, 10, 10, 10, 11], [20, 21, 19, 20, 20, 22, 20]) or (0, 0)
    assert 1.7 < low < 2 < high < 2.5
    assert estimate.change_interval([1, 2, 3, 4], [1, 2, 3, 4]) is None
    assert estimate.change_interval([0, 1, 1, 1, 1], [1] * 5) is None


# ---- compare ---------------------------------------------------------------------------------------------------------

BEFORE = {"memcached": [10.0, 11.0, 10.0, 9.0, 10.0], "tcp": [10.0, 11.1, 10.1, 9.0, 10.2]}
FASTER = {"memcached": [20.0, 21.0, 20.0, 19.0, 20.0], "tcp": [10.0, 11.0, 10.0, 9.0, 10.0]}


@pytest.mark.parametrize("figure, forth, back", [(LOWER, "better", "worse"), (HIGHER, "worse", "better")])
def test_compare_in_both_directions(figure: Figure, forth: str, back: str) -> None:
    first, second = made(BEFORE, figure), made(FASTER, figure)
    for pair, word in (((first, second), forth), ((second, first), back), ((first, first), "same")):
        (one,) = verdict.compare(*pair)
        assert (one.word, one.contender) == (word, "tcp")
        assert verdict.worse([one]) == (word == "worse")
        assert f"1 {word}" in verdict.text([one], False) or word == "same"


def test_compare_is_of_ratios_unless_absolute() -> None:
    """On a machine of half the speed, compare reports a change only with --absolute."""
    slower = made({name: [2 * value for value in values] for name, values in BEFORE.items()})
    (one,) = verdict.compare(made(BEFORE), slower)
    assert one.word == "same"
    assert [each.word for each in verdict.compare(made(BEFORE), slower, absolute=True)] == ["worse", "worse"]


def test_compare_does_not_see_what_is_within_the_spread() -> None:
    wide = {"memcached": [10.0] * 5, "tcp": [5.0, 20.0, 9.0, 11.0, 10.0]}
    wider = {"memcached": [10.0] * 5, "tcp": [6.0, 22.0, 14.0, 13.0, 12.0]}
    assert verdict.compare(made(wide), made(wider))[0].word == "same"
    # A change of 2 % is beyond the spread, but too little to count by default.
    first = made({"memcached": [10.0] * 5, "tcp": [10.0] * 5})
    second = made({"memcached": [10.0] * 5, "tcp": [10.2] * 5})
    assert verdict.compare(first, second)[0].word == "same"
    assert verdict.compare(first, second, least=0.01)[0].word == "worse"


def test_compare_of_too_few_runs() -> None:
    few = made({"memcached": [10.0, 10.0], "tcp": [10.0, 10.0]})
    found = verdict.compare(few, made(FASTER))
    assert found[0].word == "too few runs" and "--rounds 5" in verdict.text(found, False)
    assert not verdict.worse(found)


def test_compare_warns_of_other_circumstances() -> None:
    first, second = made(BEFORE), made(BEFORE)
    first["machine"] |= {"load": 0.5, "cpu": "one"}
    second["machine"] |= {"load": 9.0, "cpu": "another"}
    assert ["load at the start 0.5 and 9.0" in line for line in verdict.cautions(first, second)] == [True, False]
    assert len(verdict.cautions(first, first)) == 0
    third, fourth = made(BEFORE), made({**BEFORE, "unix": BEFORE["tcp"]})
    third["contenders"][0]["server"] = "memcached 1.6.18"
    assert verdict.cautions(third, fourth) == [
        "the reference is memcached 1.6.18 and memcached: what differs may be theirs",
        "in one of the files only, and not compared: 1 figures",
    ]


def test_compare_says_why_it_cannot() -> None:
    alone = made({"tcp": [1.0] * 5})
    with pytest.raises(BenchError, match="--absolute"):
        verdict.compare(alone, alone)
    with pytest.raises(BenchError, match="ratios to tcp and to memcached are not comparable"):
        verdict.compare(alone, made(BEFORE))
    with pytest.raises(BenchError, match="a run of latency and one of cpu have nothing in common"):
        verdict.compare(alone, {**alone, "subcommand": "cpu"})


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ("[]", "was not written by rmemcached-bench --json"),
        ('{"format": "rmemcached-bench", "version": 99}', "version 99 of the format; this program reads 2"),
        ('{"format": "rmemcached-bench", "version": 2}', "lacks cases, command, contenders"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BenchError, match=message):
        document.read(str(path))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for part, damage in (("cases", 3), ("contenders", 3), ("samples", 3), ("cases", [{"name": "a case"}])):
        document.write(str(path), {**made(BEFORE), part: damage})
        with pytest.raises(BenchError, match=r"a\.json is damaged: (TypeError|KeyError)"):
            document.read(str(path))
    whole = made(BEFORE)
    whole["samples"][0]["values"] = {"p50_us": "fast"}
    document.write(str(path), whole)
    with pytest.raises(BenchError, match=r"a\.json is damaged"):
        document.read(str(path))


def test_a_document_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    found = made(BEFORE)
    document.write(str(path), found)
    again = document.read(str(path))
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(found))
    assert table.text(again, 80) == table.text(found, 80)
