"""A check is registered in its own module: one new file, and no list elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterctl.cli import main
from clusterctl.support.errors import ConfigError
from clusterctl.validation import checks
from clusterctl.validation.checks import base, registry

MODULE = '''
"""A check that a contributor adds."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.suite import MeasuringOptions
from clusterctl.validation.checks import base, judging
from clusterctl.validation.checks.base import Registration


class DiskOptions(MeasuringOptions):
    blocks: int = 8

    @property
    def words(self):
        return "--blocks", str(self.blocks)


@dataclass(frozen=True)
class Disk(base.Check):
    options: DiskOptions = DiskOptions()
    name: str = "disk_speed"
    title: str = "every disk writes"
    deadline_s: float = 45.0
    per_node: bool = True
    file = "disk_checks.py"

    def judge(self, site, outcome):
        return judging.judge(site, outcome)


CHECKS = (
    Registration(
        name="disk_speed",
        order=41,
        options=DiskOptions,
        measures={"disk_bandwidth": "B/s"},
        first_suite="smoke",
        make=Disk,
    ),
)
'''
SUITE = """\
extends: nightly
checks:
  disk_speed: {blocks: 32, budget_s: 500 ms, deadline_s: 2 min}
references:
  - {check: disk_speed, quantity: disk_bandwidth, value: 1.5 GB/s, lower: -20 %}
"""


@pytest.fixture
def with_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a module with a check beside those of the package."""
    (tmp_path / "toy_disk.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    for cached in (registry.registrations, registry.catalogue):
        cached.cache_clear()
    yield
    for cached in (registry.registrations, registry.catalogue):
        cached.cache_clear()
    sys.modules.pop("clusterctl.validation.checks.toy_disk", None)


def test_without_its_module_a_check_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"line 3: checks\.disk_speed: unknown check 'disk_speed'"):
        registry.parse(SUITE, "validation.yml")


@pytest.mark.usefixtures("with_disk")
def test_a_new_module_is_all_that_a_new_check_takes() -> None:
    names = [check.name for check in registry.select(None)]
    assert names[names.index("node_speed") : names.index("pairs") + 1] == ["node_speed", "disk_speed", "pairs"]
    assert all("disk_speed" in registry.builtin(name).checks for name in ("smoke", "nightly", "full"))
    own = registry.parse(SUITE, "validation.yml")
    assert [(one.check, one.value, one.unit) for one in own.references] == [("disk_speed", 1.5e9, "B/s")]
    (made,) = registry.select(["disk_speed"], own)
    assert made.deadline_s == 120
    assert made.program(base.Site("5.0.7", {"node1": 1}), 60.0)[-2:] == ("--blocks", "32")


@pytest.mark.usefixtures("with_disk")
def test_mistakes_about_a_new_check_are_told_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'block'; did you mean 'blocks'\?"):
        registry.parse(SUITE.replace("blocks:", "block:"), "validation.yml")
    with pytest.raises(ConfigError, match=r"does not measure 'disk_bandwith'; did you mean 'disk_bandwidth'\?"):
        registry.parse(SUITE.replace("quantity: disk_bandwidth", "quantity: disk_bandwith"), "validation.yml")
    with pytest.raises(ConfigError, match="one of clusterctl's own checks"):
        registry.parse("external: [{name: disk_speed, command: ./a}]", "validation.yml")


# --- checks by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "near"),
    [("all-reduce", "allreduce"), ("Broadcast", "broadcast"), ("helo", "hello"), ("point", "point_to_point")],
)
def test_an_unknown_check_gets_the_nearest_name(given: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown check '{given}'; did you mean '{near}'"):
        registry.select([given])


def test_no_check_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="proves nothing"):
        registry.select([])


def test_checks_run_in_their_order_whatever_the_order_asked_for() -> None:
    assert [check.name for check in registry.select(["allreduce", "hello", "reachable"])] == ["hello", "allreduce"]
    with pytest.raises(ConfigError, match="the checks are: reachable, provisioned, skew, hello"):
        registry.select(["xyz"])


def test_help_names_every_check_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    (shown,) = re.findall(r"Run only these checks of (.*?)\(where they are installed\)", text)
    assert re.findall(r"\w+", shown.replace("(MPI)", "")) == list(registry.catalogue().checks)
