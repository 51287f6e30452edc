"""A validation inside an allocation: which nodes it asks for, how it reaches them, and what its end means."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.inventory import ansible_inventory
from clusterctl.launch import mpirun_job
from clusterctl.model import job_login
from clusterctl.model.facts import SlurmSettings
from clusterctl.model.hosts import Host, Inventory, InventoryOptions, InventorySources
from clusterctl.model.job_outcome import JobOutcome
from clusterctl.model.probe import Probe
from clusterctl.model.results import Verdict
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.remote import facts, network_probe, reach
from clusterctl.remote.slurm import Grant
from clusterctl.remote.slurm_text import SlurmNode
from clusterctl.support import content
from clusterctl.support.errors import ConfigError, ExitCode, ValidationCouldNotRunError
from clusterctl.validation import check_runner, idle_part, run, via_slurm
from clusterctl.validation.options import ValidationOptions
from clusterctl.validation.team import ReadyNode, Team
from stand_in_slurm import StandIn

SOURCES = InventorySources(("/inventory.ini",))


def node(name: str, number: int = 1, **changed: Any) -> SlurmNode:
    return replace(SlurmNode(name, f"10.0.0.{number}", 1, 2, 1, 0, "idle"), **changed)


FOUND = [node(f"node{number}", number) for number in range(1, 5)]


def inventory(*names: str, **changed: Any) -> Inventory:
    hosts = tuple(replace(host, **changed) for host in factory.hosts(names, None))
    return Inventory(SOURCES, hosts, tuple(names), "digest")


# --- choosing the nodes -----------------------------------------------------------------------------------------------


def test_all_nodes_of_an_inventory_are_asked_for_by_their_slurm_names() -> None:
    known = Inventory(SOURCES, (Host("a.site", "10.0.0.1"), Host("Node2.site", "x")), ("a.site", "Node2.site"), "")
    chosen = via_slurm.choose(FOUND, known, SlurmOptions(partition="main", account="hpc"))
    assert chosen.request.nodelist == ("node1", "node2")
    assert (chosen.request.nodes, chosen.request.exclude) == (2, ())
    assert {name: host.name for name, host in chosen.hosts.items()} == {"node1": "a.site", "node2": "Node2.site"}


def test_some_nodes_are_slurm_s_choice_among_those_of_the_inventory() -> None:
    chosen = via_slurm.choose(FOUND, inventory("node1", "node2", "node3"), SlurmOptions(nodes=2))
    assert (chosen.request.nodes, chosen.request.nodelist, chosen.request.exclude) == (2, (), ("node4",))


def test_slurm_names_the_nodes_and_unusable_ones_stay_out() -> None:
    found = [*FOUND[:3], node("node4", 4, state="drained", reason="disk")]
    assert via_slurm.choose(found, None, SlurmOptions(names_nodes=True)).request.nodelist == ("node1", "node2", "node3")
    limited = via_slurm.choose(found, None, SlurmOptions(names_nodes=True), "node[1-4],!node2")
    assert limited.request.nodelist == ("node1", "node3")
    with pytest.raises(ConfigError, match=r"--limit 'other'.*node\[1-4\]"):
        via_slurm.choose(found, None, SlurmOptions(names_nodes=True), "other")


def test_gpus_are_asked_for_since_steps_see_no_others() -> None:
    found = [node(name, gpus=8) for name in ("gpu1", "gpu2")]
    assert via_slurm.choose(found, None, SlurmOptions()).request.gpus == 8


def refused(found: list[SlurmNode], known: Inventory | None, wish: SlurmOptions) -> str:
    with pytest.raises(ValidationCouldNotRunError) as caught:
        via_slurm.choose(found, known, wish)
    assert caught.value.exit_code is ExitCode.VALIDATION_ERROR
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_nodes_are_refused_before_anything_is_submitted() -> None:
    drained = [*FOUND[:3], node("node4", 4, state="drained", reason="disk full")]
    words = refused(drained, inventory("node3", "node4"), SlurmOptions())
    assert "node4 is drained (disk full)" in words
    assert "nodename=node4 state=resume" in words
    mixed = [*FOUND, node("gpu1", 9, cores_per_socket=32, gpus=8)]
    words = refused(mixed, None, SlurmOptions(partition="all"))
    assert "partition 'all'" in words
    assert "node[1-4]: 1 x 2 cores; gpu1: 1 x 32 cores, 8 GPUs" in words
    assert "--limit" in words
    assert "5 nodes" in refused(FOUND, None, SlurmOptions(nodes=5))
    assert "resume" in refused([drained[3]], None, SlurmOptions())
    with pytest.raises(ConfigError, match=r"node9 of the inventory: not in Slurm's default partition.*-p"):
        via_slurm.choose(FOUND, inventory("node1", "node9"), SlurmOptions())


# --- the hosts of an allocation ---------------------------------------------------------------------------------------


def in_allocation(names: tuple[str, ...] = ("node1", "node2"), **changed: Any) -> Inventory:
    known = inventory(*names, **changed)
    chosen = via_slurm.choose(FOUND, known, SlurmOptions())
    return via_slurm.allocated(Grant(42, names, (2,) * len(names)), chosen, None, SOURCES)


def test_hosts_are_reached_by_a_step_and_never_by_ssh_or_sudo() -> None:
    cluster = in_allocation(become=True, user="admin", variables={"cluster_user": "mpi", "nccl_align": "newest"})
    host = cluster.selected_hosts[1]
    login = job_login.job_host(host)
    assert host.by_ssh
    assert reach.command(login, ["true"])[:2] == ["srun", "--jobid=42"]
    assert "--nodelist=node2" in reach.command(login, ["true"])
    assert not {"ssh", "sudo"} & set(reach.command(login, ["true"]))
    assert (host.become, host.user, host.variables) == (False, None, {"nccl_align": "newest"})


def test_slots_are_the_inventory_s_then_gpus_then_the_cores_of_the_job() -> None:
    def slots(cpus: tuple[int, ...], found: SlurmNode, own: int | None = None) -> int | None:
        hosts = {"node1": Host("node1", "10.0.0.1", slots=own)}
        chosen = replace(via_slurm.choose([found], None, SlurmOptions()), hosts=hosts)
        return via_slurm.allocated(Grant(1, ("node1",), cpus), chosen, None, SOURCES).hosts[0].slots

    assert slots((2,), FOUND[0]) == 2
    assert slots((1,), FOUND[0]) == 1
    assert slots((), FOUND[0]) == 2
    assert slots((64,), node("node1", gpus=8, cores_per_socket=32)) == 8
    assert slots((2,), FOUND[0], own=5) == 5


def ready(host: Host, number: int) -> ReadyNode:
    there = factory.provisioned(f"host-{number}.site", number)
    return ReadyNode(job_login.job_host(host), there, training_stack.of(there), host.slots or 1, None)


def test_mpirun_gets_slurm_s_names_and_the_whole_allocation() -> None:
    cluster = in_allocation(("node1", "node2", "node3"))
    team = Team({host.name: ready(host, number) for number, host in enumerate(cluster.hosts, 1)}, "node2")
    assert team.environment["SLURM_NODELIST"] == "node1,node2,node3"
    assert team.environment["SLURM_TASKS_PER_NODE"] == "2(x3)"
    assert team.environment["SLURM_OVERLAP"] == "1"
    job = mpirun_job.MpirunJob(program=("/bin/true",), job="job-12345678")
    line = mpirun_job.line(team.members, team.slots, job, team.launch_node)
    assert line.argv[line.argv.index("-H") + 1] == "node2:2,node1:2,node3:2"
    assert team.site.names["node2"] == "node2"
    assert team.logins(SOURCES.paths[0])["node1"].command(["true"])[0] == "srun"


def test_a_submit_host_is_one_of_the_inventory_or_a_destination() -> None:
    known = inventory("login", become=True, user="me", port=2222)
    assert idle_part.named("", known, InventoryOptions()) is None
    found = idle_part.named("login", known, InventoryOptions())
    assert (found.port, found.user, found.become) == (2222, "me", False)
    other = idle_part.named("you@head.site:23", None, InventoryOptions(private_key="/k"))
    assert (other.address, other.port, other.user, other.private_key) == ("head.site", 23, "you", "/k")
    with pytest.raises(ConfigError, match="--submit-host"):
        idle_part.named("-oProxyCommand=x", None, InventoryOptions())


def test_a_check_is_repeated_through_slurm_again() -> None:
    wish = SlurmOptions("gpu", "hpc", 7200.0, 60.0, 4, "login", names_nodes=True)
    asked = ValidationOptions(via=wish)
    repeat = asked.repeat(InventorySources(("slurm:hpc1/gpu",)), "hello")
    assert repeat == (
        "clusterctl validate --via slurm --partition gpu --account hpc --time 120 --start-within 60 --nodes 4 "
        "--submit-host login --inventory-from slurm --checks hello"
    )
    assert ValidationOptions(via=SlurmOptions()).repeat(SOURCES) == "clusterctl validate /inventory.ini --via slurm"


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Slurm's stand-ins, and nodes that answer as provisioned ones do."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    names = ("node1", "node2")
    monkeypatch.setattr(ansible_inventory, "load", lambda *_a, **_k: inventory(*names))
    watch = factory.programs(content.node_programs())
    there = {name: factory.provisioned(name, number, watch=watch) for number, name in enumerate(names, 1)}

    def gather(asked: list[Host], **_: Any) -> Probe:
        assert all(host.step is not None and host.step.job == 42 for host in asked)
        return Probe({host.name: there[host.name] for host in asked})

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(network_probe, "probe", lambda *_a, **_k: ())
    return StandIn(tmp_path, "granted").use(monkeypatch)


def test_a_job_ended_by_its_time_limit_is_no_verdict_about_the_nodes(
    slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []

    def supervised(_login: Any, spec: Any, **_: Any) -> JobOutcome:
        launched.append(spec.job)
        slurm.say("state", "TIMEOUT|node[1-2]|TimeLimit")
        return JobOutcome("lost", 1.0, problem="srun: error: node1: task 0: Terminated")

    monkeypatch.setattr(check_runner.supervised_job, "run", supervised)
    monkeypatch.setattr(check_runner.supervised_job, "sweep", lambda *_a, **_k: ())
    asked = ValidationOptions(gate=False, search=True, remembered=False, via=SlurmOptions(time_s=120))
    record = via_slurm.validate(SOURCES, asked, SlurmOptions(time_s=120))
    assert run.exit_code(record) is ExitCode.VALIDATION_ERROR
    assert len(launched) == 1  # no search, and no further check
    (first, second, *_) = [check for check in record.checks if check.check not in {"reachable", "provisioned", "skew"}]
    for check in (first, second):
        assert check.verdict is Verdict.ERROR
        for word in ("42", "time limit of 2 min", "--time"):
            assert word in check.reason
    assert (record.via, record.slurm_job) == ("slurm", 42)
    assert not [check for check in record.checks if check.verdict is Verdict.FAIL]
    assert "scancel 42" in slurm.read("log")


def test_an_error_in_the_run_gives_the_allocation_back(slurm: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_a: Any, **_k: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "of_cluster", broken)
    with pytest.raises(KeyboardInterrupt):
        via_slurm.validate(SOURCES, ValidationOptions(), SlurmOptions())
    assert "scancel 42" in slurm.read("log")


# --- the idle part of a busy cluster ----------------------------------------------------------------------------------

NOW = datetime(2026, 3, 9, tzinfo=timezone.utc)
BUSY = [
    node("node1", 1, state="allocated"),
    node("node2", 2),
    node("node3", 3, state="drained", reason="disk"),
    node("node4", 4),
]


@pytest.mark.parametrize("known", [None, inventory("node1", "node2", "node3", "node4")], ids=["slurm", "inventory"])
def test_busy_nodes_are_left_out_by_name_with_their_state(known: Inventory | None) -> None:
    chosen = via_slurm.choose(BUSY, known, SlurmOptions(), None, {})
    assert chosen.request.nodelist == ("node2", "node4")
    assert chosen.left_out == {"node1": "allocated", "node3": "drained: disk"}
    with pytest.raises(ValidationCouldNotRunError, match=r"No node is idle.*node1 \(allocated\)"):
        via_slurm.choose([BUSY[0], BUSY[2]], None, SlurmOptions(), None, {})


def test_of_more_idle_nodes_than_are_wanted_those_are_taken_whose_last_turn_is_the_oldest() -> None:
    last = {f"node{number}": NOW - timedelta(days=number) for number in (1, 2, 4)}
    chosen = via_slurm.choose(FOUND, None, SlurmOptions(nodes=2), None, last)
    assert set(chosen.request.nodelist) == {"node3", "node4"}  # node3 was never proved
    assert set(chosen.left_out) == {"node1", "node2"}
    assert "idle" in chosen.left_out["node1"]


def test_turns_are_kept_by_the_names_of_the_inventory_which_may_be_other_names_than_slurm_s() -> None:
    names = [f"{node.name}.site" for node in FOUND]
    known = Inventory(SOURCES, tuple(Host(name, "x") for name in names), tuple(names), "")
    chosen = via_slurm.choose(BUSY, known, SlurmOptions(nodes=1), None, {"node2.site": NOW})
    assert (chosen.request.nodelist, chosen.names) == (("node4",), ["node4.site"])
    assert chosen.left_out["node1.site"] == "allocated"
    assert "turn" in chosen.left_out["node2.site"]


def test_fewer_idle_nodes_than_are_wanted_are_proved_all_the_same() -> None:
    chosen = via_slurm.choose(BUSY, None, SlurmOptions(nodes=3), None, {})
    assert (chosen.request.nodes, chosen.request.nodelist) == (2, ("node2", "node4"))


@pytest.mark.parametrize("found", [True, False])
def test_srun_starts_the_ranks_unless_a_node_lacks_its_library(
    slurm: StandIn, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    del slurm
    launched: list[Any] = []
    gathered = facts.gather

    def gather(asked: list[Host], **more: Any) -> Probe:
        plugin = {"name": "pmix_v4", "opens": "/pmix/lib/libpmix.so", "found": found}
        settings = SlurmSettings.model_validate({"plugins": [plugin]})
        probe = gathered(asked, **more)
        return Probe({name: node.model_copy(update={"slurm": settings}) for name, node in probe.facts.items()})

    def supervised(_login: Any, spec: Any, **_: Any) -> JobOutcome:
        launched.append(spec)
        return JobOutcome("exited", 1.0, rc=1, argv=spec.argv)

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(check_runner.supervised_job, "run", supervised)
    monkeypatch.setattr(check_runner.supervised_job, "sweep", lambda *_a, **_k: ())
    wish = SlurmOptions(launcher="srun", mpi="pmix_v4")
    asked = ValidationOptions(checks=("hello",), gate=False, remembered=False, via=wish)
    record = via_slurm.validate(SOURCES, asked, wish)
    (hello,) = (check for check in record.checks if check.check == "hello")
    assert (record.launcher, hello.verdict, run.exit_code(record)) == ("srun", Verdict.ERROR, 11)
    if not found:
        assert launched == []
        assert "node[1-2]: Slurm's plugin pmix_v4 opens /pmix/lib/libpmix.so, which is missing" in hello.reason
        return
    (spec,) = launched
    assert spec.argv[:3] == ("srun", "--overlap", "--mpi=pmix_v4")
    assert (spec.environment["SLURM_PMIX_FENCE"], spec.environment["SLURM_JOB_ID"]) == ("ring", "42")
    assert "--launcher srun --mpi pmix_v4" in hello.repeat
