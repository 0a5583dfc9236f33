"""rmemcached-bench figures with real daemons: the figures without a device, their files, and the page."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_runs import check_page, run

from rmemcached.bench import command, document, figure_page
from rmemcached.bench.drawing import UNMEASURED
from rmemcached.bench.figures import DRAWINGS, PAPERS, UNDRAWN

DOCS = Path(__file__).resolve().parents[2] / "docs"
HERE = [name for name, drawing in DRAWINGS.items() if not drawing.machine]
PICTURE_MOST = 60_000


@pytest.mark.timeout(170)
def test_all_that_need_no_device(tmp_path: Path) -> None:
    """Each figure is drawn and written, and fills its place in the page. The others are named with the reason."""
    folder, docs = tmp_path / "figures", tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    done = run("figures", "--quick", "--rounds", "1", "--folder", str(folder), "--write", str(docs))
    assert sorted(path.stem for path in folder.glob("*.json")) == sorted(HERE)
    report = (folder / "report.html").read_text()
    written = (docs / figure_page.PAGE).read_text()
    for name in HERE:
        figures = document.read(str(folder / f"{name}.json"))
        assert figures["subcommand"] == f"figures {name}"
        assert all(row["median"] > 0 for row in figures["results"])
        assert figures["reference"] in [known["name"] for known in figures["contenders"]]
        assert check_page(folder / "report.html", figures)
        assert all(line in report for line in figures["method"])
        # The figure's paper has claims for some of the sizes of --quick, so some claim has a result beside it.
        block = next(match[2] for match in figure_page.FOUND.finditer(written) if match[1] == name)
        assert "**A sketch, not a result:** 1 round only" in block
        cells = [line.split(" | ")[-1].rstrip(" |") for line in block.splitlines() if line.startswith("| ")][1:]
        assert len(cells) == len(DRAWINGS[name].claims) and set(cells) != {UNMEASURED}
        for path in (folder / f"{name}.svg", docs / "pictures" / f"{name}.svg"):
            assert path.stat().st_size < PICTURE_MOST
            drawn = ElementTree.parse(path).getroot()
            plots = drawn.findall("{http://www.w3.org/2000/svg}svg")
            assert plots and all(plot.findall(".//{http://www.w3.org/2000/svg}text") for plot in plots)
    for name in set(DRAWINGS) - set(HERE):
        assert f"without {name}: there is no device of siw" in done.stderr and f"{name}: there is no device" in report
    assert all(f"{name}: {why}" in report for name, why in UNDRAWN.items())
    # A page made from the files is the same.
    run("figures", "--from", str(folder), "--write", str(docs))
    assert (docs / figure_page.PAGE).read_text() == written


def test_the_page_has_a_place_for_each() -> None:
    text = (DOCS / figure_page.PAGE).read_text()
    assert [match[1] for match in figure_page.FOUND.finditer(text)] == list(DRAWINGS)
    assert all(paper.title in text for paper in PAPERS.values())
    pictures = [DOCS / "pictures" / f"{name}.svg" for name in DRAWINGS]
    assert all(path.stat().st_size < PICTURE_MOST for path in pictures)


def test_the_list_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["figures", "--list"]) == 0
    said = capsys.readouterr().out
    for name, drawing in DRAWINGS.items():
        assert f"{name}: {drawing.title}" in said
        assert all(f"lacks: {lack}" in said for lack in drawing.lacks)
    for name, why in UNDRAWN.items():
        assert f"{name}: not drawn: {why}" in said


@pytest.mark.parametrize(
    "words, message",
    [
        ("raas-99", "'raas-99' is no figure: raas-1, raas-2"),
        ("raas-12", "raas-12 cannot be drawn: it shows remote atomics"),
        ("usiw-6", "usiw-6 cannot be drawn here: there is no device of siw"),
        ("rddp-loss --netem lo", "rddp-loss cannot be drawn here: there is no device of siw"),
        ("raas-18 --rounds 0", "--rounds 0: it is at least 1"),
        ("raas-18 --memcached /nowhere", "--memcached /nowhere: there is no such program"),
        ("raas-18 --write /tmp/nothing", "--write /tmp/nothing: there is no figures.md"),
        ("raas-18 --folder /proc/nothing", "/proc/nothing: No such file or directory"),
        ("--from /nowhere", "--from /nowhere: no figure's file is there"),
        ("raas-18 --from /nowhere", "/nowhere/raas-18.json: No such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["figures", *words.split()]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
