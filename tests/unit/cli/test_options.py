"""Groups of options."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from clusterctl.cli import main, options
from clusterctl.cli.app import application
from clusterctl.cli.run import joined
from clusterctl.cli.slurm_options import AllocationGroup, NodeSource, RankStarter, SlurmGroup, Way
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.model.slurm_drain_choice import DrainOptions
from clusterctl.remote import slurm_text
from clusterctl.support.errors import ExitCode
from clusterctl.validation import via_slurm
from past_runs import run
from stand_in_slurm import StandIn

ROOT = Path(__file__).parents[3]
MOST_PARAMETERS = 20


def test_options_that_are_given_are_named_as_the_user_names_them() -> None:
    which = options.InventoriesGroup(named=[Path("i.ini")])
    assert list(options.given(which, SlurmGroup(partition="gpu", nodes=2, skip_busy=True))) == [
        "INVENTORY",
        "--partition",
        "--nodes",
        "--skip-busy",
    ]
    assert options.given(options.LoginGroup(), options.JobPathGroup()) == {}


def test_no_function_takes_more_parameters_than_one_can_read() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "python/*.py", "plugins/*.py", "roles/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for path in listed.stdout.split():
        if not (ROOT / path).exists():
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                if count > MOST_PARAMETERS:
                    found[f"{path}: {node.name}"] = count
    assert found == {}


# --- options that every command which changes nodes has in common ---


CHANGING = (
    ("provision",),
    ("rollback",),
    ("remove",),
    ("replace",),
    ("uninstall",),
    ("gc",),
    ("rotate",),
    ("ca", "renew"),
    ("ca", "revoke"),
)


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_a_command_that_changes_nodes_can_take_them_over(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(application(list(words)))
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    given = {option for parameter in command.params for option in parameter.opts}
    assert {"--adopt", "--take-lock"} <= given


def test_user_means_the_login_everywhere() -> None:
    wrong = {}
    commands = [("clusterctl", typer.main.get_command(application(())))]
    for path, command in commands:
        commands += [(f"{path} {name}", one) for name, one in getattr(command, "commands", {}).items()]
        for parameter in command.params:
            known = "--user" not in parameter.opts or getattr(parameter, "hidden", False)
            if not known and (sorted(parameter.opts), parameter.metavar) != (["--user", "-u"], "NAME"):
                wrong[path] = parameter.opts
    assert len(commands) > 40
    assert wrong == {}


# --- main ---


def test_the_unexpected_is_a_sentence_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    secret = tmp_path / "clusterctl" / "crashes"
    error = RuntimeError("boom\nand more")
    assert main._explain(error, ["version"]) == 1  # noqa: SLF001 - the last line of defence has no other door
    (place,) = secret.iterdir()
    assert "RuntimeError: boom" in place.read_text(encoding="utf-8")
    assert place.stat().st_mode & 0o777 == 0o600


# --- the options that take a validation's nodes from Slurm, and the exit code where Slurm gives none ---


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


# --- run ---


def test_mca_takes_two_words_up_to_the_program() -> None:
    assert joined(["--mca", "a", "-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d"]) == [
        *("--mca=a=-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d")
    ]


@pytest.mark.programs
@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(?P<seconds>", "the regular expression is invalid"), ("step", "it needs one of the groups")],
)
def test_a_pattern_that_cannot_be_used_is_wrong_usage(tmp_path: Path, pattern: str, words: str) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=192.0.2.1\n")
    done = run("run", inventory, "--pace-pattern", pattern, "--", "true")
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "192.0.2.1" not in done.stderr, "no node was asked"
