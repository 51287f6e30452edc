from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from clusterctl.model.results import Figure
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
        (figure(100), figure(98), False, False),
        (figure(100), figure(90), True, True),
        (figure(100), figure(110), True, False),
        (figure(100, better="lower"), figure(110, better="lower"), True, True),
        (figure(100, better="none"), figure(110, better="none"), True, False),
        (figure(100, low=94, high=106), figure(90, low=84, high=96), False, False),
        (figure(0), figure(1), True, False),
        (figure(0), figure(0), False, False),
    ],
    ids=["floor", "less", "more", "lower", "neither", "interval", "from0", "both0"],
)
def test_a_difference_counts_beyond_the_noise(before: Figure, after: Figure, beyond: bool, worse: bool) -> None:
    places = []
    for night, one in enumerate((before, after)):
        places.append(Path(os.environ["XDG_STATE_HOME"]).parent / f"{night}.json")
        places[-1].write_text(record(night, check("pairs", "PASS", one)).model_dump_json(), encoding="utf-8")
    (found,) = run_comparison.compare(*map(str, places)).figures
    assert (found.beyond_noise, found.worse) == (beyond, worse)


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
    assert (done.returncode, done.stdout) == (0, "")
    assert "-50.0 %" in done.stderr
    assert "2 figures in both runs, 2 beyond the noise, 2 worse." in done.stderr
