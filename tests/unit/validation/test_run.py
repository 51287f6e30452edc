"""What the verb decides before it launches anything; the launching itself is proved in tests/cluster."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from clusterctl.model import rank_slots, results
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host, InventorySources
from clusterctl.model.job_outcome import JobOutcome, OutputLine, Sweep
from clusterctl.model.probe import Probe
from clusterctl.model.results import ValidationRecord, Verdict
from clusterctl.model.slurm_drain_choice import DrainOptions
from clusterctl.remote import supervised_job
from clusterctl.state import files, runs
from clusterctl.state import paths as state_paths
from clusterctl.support import content
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from clusterctl.validation import check_results, check_runner, gate
from clusterctl.validation import run as validation
from clusterctl.validation.checks import base, registry
from clusterctl.validation.options import ValidationOptions
from factory import ready_node as node

pytestmark = pytest.mark.programs


@pytest.mark.parametrize(
    ("slots", "gpus", "cores", "expected"), [(3, 4, 8, 3), (None, 4, 8, 4), (None, 0, 8, 8), (None, 0, 0, 1)]
)
def test_slots_are_the_inventory_s_then_one_per_gpu_then_one_per_core(
    slots: int | None, gpus: int, cores: int, expected: int
) -> None:
    there = node(cores=cores, gpus=[{"bus": f"0000:0{number}:00.0", "driver": "nvidia"} for number in range(gpus)])
    assert rank_slots.slots_of(Host("node1", "10.0.0.1", slots=slots), there) == expected


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([{"unusable": "container", "problem": "p"}] * 2, 8),
        ([{"unusable": "driver", "problem": "p", "driver": "nouveau"}], 8),
        ([{"instances": ["MIG-a", "MIG-b"]}, {}], 3),
        ([{"instances": ["MIG-a", "MIG-b"], "unusable": "versions", "problem": "p"}, {}], 1),
    ],
)
def test_slots_are_gpus_and_mig_instances_that_jobs_can_use(gpus: list[dict[str, Any]], expected: int) -> None:
    found = [{"bus": f"0000:0{number}:00.0", "driver": "nvidia", **one} for number, one in enumerate(gpus)]
    assert rank_slots.slots_of(Host("node1", "10.0.0.1"), node(cores=8, gpus=found)) == expected


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PASS, ExitCode.OK),
        (Verdict.FAIL, ExitCode.VALIDATION_FAILED),
        (Verdict.ERROR, ExitCode.VALIDATION_ERROR),
        (Verdict.SKIP, ExitCode.VALIDATION_ERROR),
    ],
)
def test_exit_codes(verdict: Verdict, code: ExitCode) -> None:
    record = ValidationRecord.model_construct(verdict=verdict)
    assert validation.exit_code(record) is code


@pytest.mark.parametrize(
    ("raised", "outcome", "code"),
    [
        (None, "failed", 10),
        (KeyboardInterrupt(), "interrupted", 130),
        (ValidationCouldNotRunError("no room"), "failed", 11),
        (ValueError("no room"), "failed", 1),
    ],
)
def test_a_run_says_how_its_validation_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException | None, outcome: str, code: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sources, options = InventorySources(("kubernetes:here",)), ValidationOptions()
    folders: list[runs.Run] = []

    def work(run: runs.Run) -> ValidationRecord:
        folders.append(run)
        if raised is not None:
            raise raised
        bad = results.CheckResult(check="hello", verdict=Verdict.FAIL, reason="node1 is silent")
        return ValidationRecord.model_construct(verdict=Verdict.FAIL, checks=(bad,))

    if raised is None:
        validation.in_a_run(sources, options, work)
    else:
        with pytest.raises(type(raised)):
            validation.in_a_run(sources, options, work)
    (kept,) = folders
    assert (kept.record.outcome, kept.record.exit_code) == (outcome, code)
    assert kept.record.finished is not None
    assert kept.record.message == ("hello: node1 is silent" if raised is None else str(raised))


def test_a_check_whose_nodes_went_away_blames_nobody() -> None:
    judgement = base.Judgement(Verdict.FAIL, "no answer", ("node1",), next_step="look at node1")
    result = judgement.result("hello", seconds=1.0, log="logs/hello.log")
    assert (result.check, result.hosts, result.next_step, result.log) == (
        "hello",
        ("node1",),
        "look at node1",
        "logs/hello.log",
    )
    ended = check_results.ended_during(result, "Slurm job 42 is gone")
    assert (ended.verdict, ended.hosts, ended.next_step) == (Verdict.ERROR, (), "")
    assert ended.reason == "Slurm job 42 is gone; it ended during this check"


def test_the_deadline_grows_with_the_ranks_and_where_they_share_a_core() -> None:
    def deadline(slots: int, cores: int) -> float:
        return base.deadline_s(
            registry.select(["hello"])[0], base.Site("5.0.7", {"node1": slots}, cores={"node1": cores})
        )

    assert deadline(8, 8) < deadline(1024, 1024) < 120
    assert deadline(8, 16) == deadline(8, 8)
    assert deadline(8, 2) > 3 * deadline(8, 8)


# --- a cluster on which only some nodes can do everything -------------------------------------------------------------


def provisioned(name: str, pytorch: str) -> NodeFacts:
    """Return facts of a node that carries everything but Horovod and, perhaps, PyTorch."""
    there = [*node().model_dump()["artifacts"]]
    there[0] |= {"version": "5.0.7"}
    if pytorch:
        there[1] |= {"inputs": {"framework": {"name": "pytorch", "version": pytorch, "cuda": "", "nccl": ""}}}
    files, programs = content.role_files("validation"), content.node_programs()
    watch = [
        {"path": entry["path"], "sha256": hashlib.sha256((files / name).read_bytes()).hexdigest()}
        for name, entry in zip(programs, gate.watch_entries(Host("node1", "10.0.0.1")), strict=True)
    ]
    return node(name, artifacts=there, watch=watch)


def placed(spec: supervised_job.JobSpec) -> str:
    """Return the hosts and slots that mpirun gets."""
    return spec.argv[spec.argv.index("-H") + 1]


class Launched:
    """Stand in for the launching: keep what was to be run, and have every rank answer that it found nothing wrong."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.specs: list[supervised_job.JobSpec] = []
        self.peers: list[list[str]] = []

    def run(
        self, login: supervised_job.JobLogin, spec: supervised_job.JobSpec, *, peers: Any, on_line: Any, stop: Any
    ) -> JobOutcome:
        assert stop is None  # nobody searches
        self.hosts.append(login.host.name)
        self.specs.append(spec)
        self.peers.append([peer.host.name for peer in peers])
        slots = [word.split(":") for word in placed(spec).split(",")]
        places = [name for name, count in slots for _ in range(int(count))]
        figures = {"loss": 0.5, "single_process_loss": 0.5}
        said = [
            {"event": "result", "check": "torchrun", "rank": rank, "host": place, "compared": 1, "figures": figures}
            | {"facts": {"backend": "gloo"}}
            for rank, place in enumerate(places)
        ]
        lines = tuple(OutputLine("stdout", 1.0, json.dumps({"clusterctl": 1, **event})) for event in said)
        for line in lines:
            on_line(line)
        return JobOutcome("exited", 2.0, 2.0, rc=0, lines=lines)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launched:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stand_in = Launched()
    monkeypatch.setattr(check_runner.supervised_job, "run", stand_in.run)
    return stand_in


def validated(tmp_path: Path, pytorch: dict[str, str], **options: Any) -> ValidationRecord:
    names = ["node1", "node2", "node3", "node4"]
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("".join(f"{name} ansible_host=10.0.0.1 slots=2\n" for name in names), encoding="utf-8")
    known = {name: provisioned(name, pytorch.get(name, "")) for name in names}
    given = validation.ValidationOptions(
        checks=("torchrun", "horovod"), probe=Probe(facts=known, failures={}), **options
    )
    return validation.validate(inventory, given)


def test_a_check_runs_where_it_can_and_names_the_others(launched: Launched, tmp_path: Path) -> None:
    record = validated(tmp_path, dict.fromkeys(("node3", "node4"), "2.13.0"))
    torchrun, horovod = record.checks[-2:]
    assert record.verdict is Verdict.PASS, [check.reason for check in record.checks]
    assert torchrun.reason.endswith("; not on node[1-2]: no PyTorch")
    assert torchrun.left_out == {"node1": "no PyTorch", "node2": "no PyTorch"}
    assert (horovod.verdict, horovod.reason) == (Verdict.SKIP, "no Horovod on node[1-4]")
    assert set(horovod.left_out) == {"node1", "node2", "node3", "node4"}
    assert launched.hosts == ["node3"]  # the launch node cannot take part, so another one launches
    assert launched.peers == [["node4"]]
    (spec,) = launched.specs
    assert placed(spec) == "node3:2,node4:2"
    line = " ".join(spec.argv)
    assert "-np 2 --bind-to none --map-by ppr:1:node" in line
    assert line.endswith("--slots 2,2 --first-node node3 --backend gloo")
    assert record.launch_node == "node1"
    assert ValidationRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(("search", "hosts"), [(None, ("node3",)), (False, ())])
def test_a_quick_search_at_the_end_of_a_run_tells_whose_values_are_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, search: bool | None, hosts: tuple[str, ...]
) -> None:
    """All roots get wrong sums wherever node3 takes part, and no answer tells why."""

    def run(_login: Any, spec: supervised_job.JobSpec, **_: Any) -> JobOutcome:
        places = [word.split(":")[0] for word in placed(spec).split(",")]
        answer = {"what": "reduce sum i4[1] to rank {}, value 0 (1 of 1 wrong)", "expected": "10", "got": "11"}
        bad = {"ok": False, "wrong": 2, "problems": [answer, answer]} if "node3" in places else {}
        said = [{"event": "result", "rank": at, "host": place, "compared": 1} | bad for at, place in enumerate(places)]
        lines = tuple(OutputLine("stdout", 1.0, json.dumps({"clusterctl": 1, **event})) for event in said)
        return JobOutcome("exited", 2.0, 2.0, rc=1 if bad else 0, lines=lines, sweeps=(Sweep("node1"),))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(check_runner.supervised_job, "run", run)
    names = ["node1", "node2", "node3", "node4"]
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("".join(f"{name} ansible_host=10.0.0.1 slots=1\n" for name in names), encoding="utf-8")
    probe = Probe(facts={name: provisioned(name, "") for name in names}, failures={})
    options = validation.ValidationOptions(checks=("reduce", "scatter"), probe=probe, search=search)
    found = {check.check: check for check in validation.validate(inventory, options).checks}
    assert found["reduce"].named == found["scatter"].named == hosts
    assert len([one for one in found.values() if one.search]) == len(hosts)  # one search for both
    assert bool(found["scatter"].next_step) != bool(hosts)


def test_the_launch_node_that_was_asked_for_launches_what_it_can(launched: Launched, tmp_path: Path) -> None:
    record = validated(tmp_path, dict.fromkeys(("node1", "node2", "node4"), "2.13.0"), launch_node="node4")
    assert launched.hosts == ["node4"]
    assert placed(launched.specs[0]) == "node4:2,node1:2,node2:2"
    assert record.checks[-2].reason.endswith("; not on node3: no PyTorch")


def test_what_is_wrong_with_a_stack_is_said_before_anything_is_launched(launched: Launched, tmp_path: Path) -> None:
    record = validated(tmp_path, {"node1": "2.13.0", "node2": "2.13.0", "node3": "2.12.1", "node4": "2.13.0"})
    found = record.checks[1]
    assert (found.check, found.verdict, found.hosts) == ("provisioned", Verdict.FAIL, ("node3",))
    assert found.reason.startswith("node3: framework PyTorch 2.12.1 is installed, and most nodes have PyTorch 2.13.0; ")
    assert record.verdict is Verdict.FAIL
    assert placed(launched.specs[0]).count(":2") == 4  # MPI is none of its business, so the node stays


@pytest.mark.usefixtures("launched")
def test_a_run_that_is_interrupted_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> JobOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_runner.supervised_job, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        validated(tmp_path, dict.fromkeys(("node1", "node2", "node3", "node4"), "2.13.0"))
    (kept,) = {path.resolve() for path in (tmp_path / "state").glob("clusterctl/clusters/*/runs/*/validation.json")}
    record = results.load(kept.read_bytes(), str(kept))
    assert [check.verdict for check in record.checks[-2:]] == [Verdict.ERROR, Verdict.SKIP]
    assert record.verdict is Verdict.ERROR


def test_proofs_that_cannot_be_kept_cost_no_verdict_and_slurm_is_told(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the proofs is a newer clusterctl's, so it is left alone."""
    told: list[Verdict] = []

    class Silent:
        def every_node(self) -> NoReturn:
            raise ValidationCouldNotRunError("no answer")

    def tell(_slurm: Any, _hosts: Any, record: ValidationRecord, _wish: Any) -> tuple[str, ...]:
        told.append(record.verdict)
        return ("Slurm knows.",)

    monkeypatch.setattr(validation, "Slurm", lambda *_, **__: Silent())
    monkeypatch.setattr(validation, "tell", tell)
    proofs = state_paths.proofs_file(state_paths.cluster_id(tmp_path / "inventory.ini"))
    files.keep(proofs, '{"schema_version": 2}')
    drains = DrainOptions(failed=True, proved=True, submit_host="node1")
    record = validated(tmp_path, dict.fromkeys(("node3", "node4"), "2.13.0"), drains=drains)
    assert (record.verdict, told) == (Verdict.PASS, [Verdict.PASS])
    (note,) = (note for note in record.notes if note.startswith("Which nodes this run proves is not kept: "))
    assert str(proofs) in note
    assert record.notes[-1] == "Slurm knows."
    (kept,) = {path.resolve() for path in (tmp_path / "state").glob("clusterctl/clusters/*/runs/*/validation.json")}
    assert results.load(kept.read_bytes(), str(kept)).notes == record.notes
    assert launched.specs


# --- the gate before anything is launched -----------------------------------------------------------------------------


def with_other_mpi(monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    """Have node2 carry an Open MPI that is not the others'."""

    def make(name: str, pytorch: str) -> NodeFacts:
        made = provisioned_as_ever(name, pytorch)
        artifacts = [entry.model_copy(update=changed if name == "node2" else {}) for entry in made.artifacts[:1]]
        return made.model_copy(update={"artifacts": (*artifacts, *made.artifacts[1:])})

    provisioned_as_ever = provisioned
    monkeypatch.setitem(globals(), "provisioned", make)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "5.0.6"}, "node2: Open MPI is 5.0.6, and 5.0.7 on most nodes"),
        ({"key": "other"}, "node2: the build of Open MPI is 5.0.7-other, and 5.0.7-0123456789abcdef on most nodes"),
    ],
)
def test_nothing_is_launched_on_nodes_that_differ(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], words: str
) -> None:
    with_other_mpi(monkeypatch, **changed)
    record = validated(tmp_path, {})
    found = record.checks[2]
    assert (found.check, found.verdict, found.hosts) == ("skew", Verdict.FAIL, ("node2",))
    assert found.reason == f"{words}; run 'clusterctl provision' again"
    assert {check.reason for check in record.checks[3:]} == {"the nodes differ; give --no-gate to run it anyway"}
    assert (record.verdict, launched.specs) == (Verdict.FAIL, [])


def test_without_the_gate_nodes_that_differ_are_tried(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_mpi(monkeypatch, version="5.0.6")
    record = validated(tmp_path, dict.fromkeys(("node1", "node2"), "2.13.0"), gate=False)
    assert (record.checks[2].check, record.checks[2].verdict, record.checks[2].reason) == (
        "skew",
        Verdict.SKIP,
        "--no-gate",
    )
    assert launched.hosts == ["node1"]
    assert "--no-gate" in record.checks[1].repeat


def test_a_warning_is_told_and_stops_nothing(launched: Launched, tmp_path: Path) -> None:
    record = validated(tmp_path, dict.fromkeys(("node3", "node4"), "2.13.0"))
    found = record.checks[2]
    assert (found.check, found.verdict) == ("skew", Verdict.PASS)
    assert found.reason.startswith("nothing that stops a job; node[1-2]: no training framework is installed")
    assert launched.hosts == ["node3"]
