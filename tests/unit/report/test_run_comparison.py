from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from clusterctl.model.results import Figure, Fineness
from clusterctl.report import run_comparison
from clusterctl.support.errors import ConfigError
from past_runs import check, figure, record, remember, run


def test_figures_stand_side_by_side_across_versions(inventory: Path) -> None:
    first = record(1, check("pairs", "PASS", figure(100), figure(5, size_bytes=1), figure(7, "node1")), check("hello"))
    second = record(
        2,
        check("pairs", "FAIL", figure(80), figure(5, size_bytes=2), figure(7, "node1")),
        versions={"openmpi": "5.0.8", "torch": "2.9"},
    )
    remember(inventory, first, second)
    found = run_comparison.compare("last-1", "last")
    assert (found.first.run_id, found.second.run_id) == (first.run_id, second.run_id)
    assert found.versions == {"openmpi": ("5.0.7", "5.0.8"), "torch": ("", "2.9")}
    assert found.verdicts == {"pairs": ("PASS", "FAIL"), "hello": ("PASS", "")}
    assert [(one.first, one.second, one.beyond_noise, one.worse) for one in found.figures] == [
        (100, 80, True, True),
        (7, 7, False, False),
    ]
    assert found.figures[0].change == pytest.approx(-0.2)
    assert (found.only_first, found.only_second) == (1, 1)


@pytest.mark.parametrize(
    ("before", "after", "beyond", "worse"),
    [
        (figure(100, low=99, high=101), figure(98, low=97, high=99), False, False),
        (figure(100, low=99, high=101), figure(94, low=93, high=95), True, True),
        (figure(100), figure(92), False, False),
        (figure(100), figure(90), True, True),
        (figure(100), figure(111), True, False),
        (figure(100, better="lower"), figure(111, better="lower"), True, True),
        (figure(100, better="none"), figure(111, better="none"), True, False),
        (figure(100, low=94, high=106), figure(90, low=84, high=96), False, False),
        (figure(0), figure(1), True, False),
        (figure(0), figure(0), False, False),
    ],
    ids=[
        "floor",
        "beyond-the-floor",
        "without-interval",
        "less",
        "more",
        "lower",
        "neither",
        "interval",
        "from0",
        "both0",
    ],
)
def test_a_difference_counts_beyond_the_noise(before: Figure, after: Figure, beyond: bool, worse: bool) -> None:
    places = []
    for night, one in enumerate((before, after)):
        places.append(Path(os.environ["XDG_STATE_HOME"]).parent / f"{night}.json")
        places[-1].write_text(record(night, check("pairs", "PASS", one)).model_dump_json(), encoding="utf-8")
    (found,) = run_comparison.compare(*map(str, places)).figures
    assert (found.beyond_noise, found.worse) == (beyond, worse)


@pytest.mark.parametrize("told_by", [1, 2])
@pytest.mark.parametrize(
    ("one", "fraction", "noise"),
    [
        (figure(100, "node1", "node2"), 0.9, 9.0),
        (figure(100, "node1", "node2", low=99, high=101), 0.9, 9.0),
        (figure(100, "node1", "node2", better="lower"), 9.99, 9.99),
        (figure(100), 0.5, 1.0),
        (figure(100, low=99, high=101), 0.5, 0.03),
        (figure(100, "node1"), 0.5, 1.0),
    ],
    ids=["link", "link-with-interval", "lower", "job", "job-with-interval", "node"],
)
def test_a_difference_that_one_of_the_runs_could_not_see_is_none(
    inventory: Path, one: Figure, fraction: float, noise: float, told_by: int
) -> None:
    """A run whose links were judged to a factor of ten cannot tell half of a bandwidth."""
    judged = Fineness(kind="link", quantity=one.quantity, fraction=fraction)
    for night in (1, 2):
        measured = check("pairs", "PASS", one, fineness=(judged,) if night == told_by else ())
        remember(inventory, record(night, measured))
    (found,) = run_comparison.compare("last-1", "last").figures
    assert found.noise == pytest.approx(noise)


def test_what_good_nights_scatter_is_noise(inventory: Path) -> None:
    remember(inventory, *(record(night, check("pairs", "PASS", figure(100 + 6 * (night % 5)))) for night in range(10)))
    (found,) = run_comparison.compare("last-4", "last-2").figures
    assert found.change == pytest.approx(0.12)
    assert found.noise == pytest.approx(math.expm1(4.5 * 1.4826 * math.log(112 / 106)))
    assert not found.beyond_noise


def test_runs_of_different_clusters_are_refused(inventory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ini"
    other.write_text("node1\n", encoding="utf-8")
    remember(inventory, record(1))
    remember(other, record(2))
    with pytest.raises(ConfigError, match=r"The runs are of different clusters \(20260302.* of inventory-.* and "):
        run_comparison.compare(record(1).run_id, record(2).run_id)
    with pytest.raises(ConfigError, match="'20260303' is not in the history of inventory-"):
        run_comparison.compare("20260303", "last", inventory)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{half", "is damaged: it is no JSON"),
        ('{"schema_version": 99}', "has schema 99, which this clusterctl does not know"),
        ("[]", "is not a record of a validation"),
        ('{"schema_version": 2, "run_id": 5}', "is damaged: "),
        (None, "does not exist; give"),
    ],
    ids=["half", "newer", "list", "wrong", "missing"],
)
def test_a_record_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "validation.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=".*") as caught:  # noqa: RUF043 - any sentence; it is looked at below
        run_comparison.compare(str(path), str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_of_the_first_schema_can_be_compared(tmp_path: Path) -> None:
    old = json.loads(record(1, check("hello")).model_dump_json(exclude={"suite", "versions", "fabric", "trends"}))
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**old, "schema_version": 1, "openmpi_version": "4.1.6"}), encoding="utf-8")
    new = tmp_path / "new.json"
    new.write_text(record(2, check("hello")).model_dump_json(), encoding="utf-8")
    assert run_comparison.compare(str(path), str(new)).versions == {"openmpi": ("4.1.6", "5.0.7")}


@pytest.mark.usefixtures("nights")
def test_compare_in_words() -> None:
    done = run("compare", "last-1", "last")
    assert (done.returncode, done.stderr) == (0, "")
    assert "-50.0 %" in done.stdout
    assert "2 figures in both runs, 2 beyond the noise, 2 worse." in done.stdout
