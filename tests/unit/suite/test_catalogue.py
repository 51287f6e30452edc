"""The catalogue of checks: the built-in suites, and which suite a run takes."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from clusterctl import suite
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import registry
from clusterctl.validation.checks.collectives import SweepOptions
from clusterctl.validation.checks.pairs import PairsOptions

R = TypeVar("R", bound=suite.CheckOptions)


CHECKS = registry.catalogue().checks
ON_REQUEST = ("nccl_nvlink", "nccl_pcie", "nccl_nic")
FULL_ALONE = ("nccl_pairs", "dcgm")


def options_of(where: suite.Suite, check: str, kind: type[R]) -> R:
    found = where.checks[check]
    assert isinstance(found, kind)
    return found


def test_the_checks_run_in_their_order() -> None:
    assert list(CHECKS) == [
        *("hello", "point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce", "network", "node_speed"),
        *("pairs", "copies", "collectives", "nccl", "nccl_sweep", "nccl_pairs", *ON_REQUEST, "dcgm"),
        *("gpu_compute", "gpu_copies", "gpu_mpi"),
        *("torchrun", "horovod", "horovod_sweep", "training"),
    ]
    nightly = [name for name in CHECKS if name not in {*ON_REQUEST, *FULL_ALONE}]
    assert [check.name for check in registry.select(None)] == nightly


@pytest.mark.parametrize("name", ["smoke", "nightly", "full"])
def test_a_built_in_suite_is_its_own_default(name: str) -> None:
    found = registry.load(None, name)
    assert found.name == name
    assert list(found.checks) == [check for check in CHECKS if check in found.checks]
    for check, options in found.checks.items():
        assert type(options) is CHECKS[check].options
    assert [check.name for check in registry.build(found)] == list(found.checks)


def test_smoke_is_quick_and_the_default() -> None:
    smoke = registry.load(None)
    assert smoke == registry.default()
    assert smoke.name == "smoke"
    assert set(CHECKS) - set(smoke.checks) == {
        *("training", "copies", "collectives", "nccl_sweep", "horovod_sweep", "gpu_compute", "gpu_copies"),
        *(*ON_REQUEST, *FULL_ALONE),
    }
    pairs = options_of(smoke, "pairs", PairsOptions)
    rounds = pairs.max_rounds or 0
    assert pairs.budget_s * rounds * (len(pairs.latency_bytes) + len(pairs.bandwidth_bytes)) < 5
    assert set(registry.builtin("full").checks) == set(CHECKS) - set(ON_REQUEST)
    assert set(registry.builtin("nightly").checks) == set(registry.builtin("full").checks) - set(FULL_ALONE)


def test_options_of_a_check_that_the_suite_does_not_run_are_nightlys() -> None:
    (nightly,) = registry.select(["collectives"])
    assert registry.select(["collectives"], registry.builtin("smoke")) == (nightly,)
    with pytest.raises(TypeError, match="pairs takes PairsOptions, not SweepOptions"):
        registry.registrations()["pairs"].check(SweepOptions())


def test_two_checks_of_one_name_or_place_are_refused() -> None:
    one = suite.Declaration(name="one", order=1)
    for other in (suite.Declaration(name="one", order=2), suite.Declaration(name="two", order=1)):
        with pytest.raises(ValueError, match="two checks have the name or the order"):
            suite.Catalogue([one, other])


def test_an_unknown_suite() -> None:
    with pytest.raises(ConfigError, match=r"Unknown suite 'nigthly'; did you mean 'nightly'\?"):
        registry.builtin("nigthly")
    with pytest.raises(ConfigError, match=r"the suites are smoke, nightly, full\.$"):
        registry.load(None, "xyz")


def test_a_name_chooses_between_the_file_and_what_is_built_in(tmp_path: Path) -> None:
    path = tmp_path / "validation.yml"
    path.write_text(
        "name: ours\nextends: nightly\nchecks: {training: false}\noutliers: {floor: 5 %}\n"
        "external:\n- {name: disk, command: ./disk.sh}\n",
        encoding="utf-8",
    )
    ours = registry.load(path)
    assert ours == registry.load(path, "ours")
    assert ours.name == "ours"
    smoke = registry.load(path, "smoke")
    assert smoke.checks == registry.builtin("smoke").checks
    assert (smoke.outliers.floor, smoke.external) == (0.05, ())
    with pytest.raises(ConfigError, match=r"Unknown suite 'our' in .*; did you mean 'ours'\?"):
        registry.load(path, "our")
    path.write_text("extends: nightly\nchecks: {training: false}\n", encoding="utf-8")
    assert "training" not in registry.load(path, "nightly").checks


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no file .*nothing\.yml"):
        registry.load(tmp_path / "nothing.yml")
    with pytest.raises(ConfigError, match="cannot be read"):
        registry.load(tmp_path)
    (tmp_path / "latin.yml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        registry.load(tmp_path / "latin.yml")
