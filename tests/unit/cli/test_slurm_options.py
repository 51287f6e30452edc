"""The options that take a validation's nodes from Slurm, and the exit code where Slurm gives none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.cli import main
from clusterctl.cli.slurm_options import AllocationGroup, NodeSource, RankStarter, SlurmGroup, Way
from clusterctl.model.drains import DrainOptions
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.remote import slurm_text
from clusterctl.support.errors import ExitCode
from clusterctl.validation import via_slurm
from stand_in_slurm import StandIn

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_asked_of_slurm() -> None:
    given = SlurmGroup("gpu", "hpc", "1:30:00", "2 min", 4, "login")
    assert given.wish(Way.SLURM) == SlurmOptions("gpu", "hpc", 5400.0, 120.0, 4, "login")
    assert AllocationGroup(inventory_from=NodeSource.SLURM).wish(Way.SLURM) == SlurmOptions(names_nodes=True)
    assert SlurmGroup().wish(Way.SLURM) == SlurmOptions()
    assert SlurmGroup().wish(Way.SSH) is None
    by_srun = AllocationGroup(launcher=RankStarter.SRUN, mpi="pmix_v4").wish(Way.SLURM)
    assert by_srun == SlurmOptions(launcher="srun", mpi="pmix_v4")
    assert by_srun.words == ["--via", "slurm", "--launcher", "srun", "--mpi", "pmix_v4"]
    told = SlurmGroup(submit_host="login", drain_failed=True, undrain_proved=True)
    assert told.wish(None) is None  # the host hears of drains alone
    assert told.drains(None) == DrainOptions(failed=True, proved=True, submit_host="login")
    assert SlurmGroup().drains(None) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("45:30", 2730), ("1:00:00", 3600), ("2-00", 172800), ("1-12:30", 131400), ("1-0:0:5", 86405)],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text: str, seconds: float) -> None:
    assert slurm_text.time_limit(text) == seconds


@pytest.mark.parametrize("text", ["0", "", "1 h", "-5", "1:2:3:4", "x"])
def test_another_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        slurm_text.time_limit(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["i.ini", "-p", "gpu"], "--partition: it needs --via slurm"),
        (["i.ini", "--nodes", "2"], "--nodes: it needs --via slurm"),
        (["i.ini", "--submit-host", "login"], "--submit-host: it needs --via slurm"),
        (["i.ini", "--via", "slurm", "--undrain-proved"], "--undrain-proved"),
        (["--via", "slurm"], "INVENTORY: it is missing"),
        (["i.ini", "--via", "slurm", "--inventory-from", "slurm"], "--inventory-from"),
        (["i.ini", "--via", "slurm", "--time", "soon"], "--time"),
        (["i.ini", "--via", "slurm", "--nodes", "0"], "--nodes"),
        (["i.ini", "--via", "pbs"], "--via"),
        (["i.ini", "--launcher", "srun"], "--launcher: it needs --via slurm"),
        (["i.ini", "--via", "slurm", "--mpi", "pmix"], "--mpi: it needs --launcher srun"),
    ],
)
def test_wrong_options_are_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main.main(["validate", *arguments]) == ExitCode.USAGE
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_refusal_of_slurm_ends_with_11_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    StandIn(tmp_path, "refused").use(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    code = main.main(["validate", "--via", "slurm", "--inventory-from", "slurm", "-p", "main", "-A", "hpc"])
    assert code == ExitCode.VALIDATION_ERROR
    said = capsys.readouterr().err
    assert "The account 'hpc' may not submit jobs to partition 'main'" in " ".join(said.split())
    assert "Traceback" not in said


def test_slurm_names_the_nodes_without_an_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def validate(inventory: Any, _options: Any, wish: SlurmOptions, _tell: Any) -> Any:
        asked.append((inventory, wish.partition))
        raise KeyboardInterrupt

    monkeypatch.setattr(via_slurm, "validate", validate)
    assert main.main(["validate", "--via", "slurm", "--inventory-from", "slurm", "-p", "a"]) == ExitCode.INTERRUPTED
    assert asked == [(None, "a")]
