from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import factory
import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts
from clusterctl.model.hosts import PLAYED_ALONE, READ_BY_SEVERAL, ROLES_OF_VARIABLES
from clusterctl.model.run_record import HostResult
from clusterctl.model.snapshot import SLICES, HostDifference, HostSnapshot, NodeState, Snapshot
from clusterctl.provisioning import plan
from clusterctl.provisioning.plan import Inputs

INPUTS = Inputs(inventory="i", content="c", version="1", options={"become": "True"})
WATCH = (
    {"path": "/etc/hosts", "kind": "file", "mode": "0644", "sha256": "aa"},
    {"path": "/usr/local/openmpi", "kind": "link", "target": "openmpi-5"},
)
STATES = {
    "node1": NodeState("debian-12", ("ssh-ed25519 A",), "me", WATCH),
    "node2": NodeState("debian-12", ("ssh-ed25519 B",), "me", WATCH),
}
HOSTS = ["node1", "node2"]


def provisioned() -> dict[str, plan.HostSnapshot]:
    members = plan.cluster_of(STATES, {}, HOSTS)
    return plan.snapshots_after("run", HOSTS, STATES, {"node1": WATCH, "node2": WATCH}, INPUTS, members)


def decide(states: dict[str, NodeState], inputs: Inputs = INPUTS, selected: list[str] = HOSTS) -> dict[str, str]:
    snapshots = provisioned()
    names = sorted(set(HOSTS) | set(states))
    return dict(plan.decide(selected, states, snapshots, inputs, plan.cluster_of(states, snapshots, names)).reasons)


def test_nothing_to_do_when_all_is_as_it_was_left() -> None:
    assert decide(STATES) == {}


def test_a_host_that_is_as_it_was_left_plays_all_roles_where_that_is_asked_for() -> None:
    changed = {**STATES, "node2": replace(STATES["node2"], watch=())}
    cluster = plan.cluster_of(changed, provisioned(), HOSTS)
    found = plan.decide(HOSTS, changed, provisioned(), INPUTS, cluster, every_role=True)
    assert found.reasons["node1"] == plan.ASKED_FOR
    assert found.reasons["node2"].startswith("/etc/hosts"), "what drifted says more than the option"
    assert found.as_left == frozenset(), "no host plays the roles of meeting alone"


def test_a_new_host_is_provisioned_and_the_others_have_to_meet_it() -> None:
    states = {**STATES, "node3": NodeState("debian-12", ("ssh-ed25519 C",), "me")}
    reasons = decide(states, selected=["node1", "node2", "node3"])
    assert "not provisioned yet" in reasons["node3"]
    assert reasons["node1"] == "another node is new or has changed"


PARTS = {"": "r", "environment": "e", "fabric": "f", "nccl": "n"}


def after_a_change(
    parts: dict[str, str], inputs: Inputs = INPUTS, states: dict[str, NodeState] = STATES, role: str = "hosts"
) -> plan.ProvisionPlan:
    """Decide what a provision does whose last one had other parts of the inventory."""
    told = tuple({**entry, "role": role} for entry in WATCH)
    offering = {name: replace(state, offers="o") for name, state in states.items()}
    before = plan.cluster_of({name: replace(STATES[name], offers="o") for name in HOSTS}, {}, HOSTS)
    snapshots = plan.snapshots_after(
        "run", HOSTS, STATES, dict.fromkeys(HOSTS, told), replace(INPUTS, parts=PARTS), before
    )
    now = replace(inputs, inventory="changed", parts=parts)
    return plan.decide(HOSTS, offering, snapshots, now, plan.cluster_of(offering, snapshots, HOSTS))


def test_a_changed_variable_plays_the_roles_that_read_it() -> None:
    found = after_a_change({**PARTS, "environment": "x"})
    assert found.roles == ("environment",)
    assert dict(found.reasons) == dict.fromkeys(HOSTS, "variables of environment changed")
    found = after_a_change({**PARTS, "environment": "x", "nccl": "x"})
    assert found.roles == ("environment", "software"), "in the playbook's order"
    assert set(found.reasons.values()) == {"variables of environment and nccl changed"}


@pytest.mark.parametrize(
    "found",
    [
        after_a_change({**PARTS, "": "x", "environment": "x"}),
        after_a_change({**PARTS, "": "x"}),
        after_a_change({}),  # an older release kept none
        after_a_change({**PARTS, "fabric": "x"}, inputs=replace(INPUTS, content="x")),
        after_a_change({**PARTS, "fabric": "x"}, inputs=replace(INPUTS, options={})),
        after_a_change({**PARTS, "fabric": "x"}, states={**STATES, "node2": replace(STATES["node2"], watch=())}),
        after_a_change({**PARTS, "fabric": "x"}, states={**STATES, "node2": replace(STATES["node2"], host_keys=())}),
        after_a_change({**PARTS, "fabric": "x"}, role="Switch the links"),  # a rollback told it
        after_a_change({**PARTS, "fabric": "x"}, role=""),  # an older release does not say who told it
    ],
)
def test_all_roles_are_played_where_anything_else_changed(found: plan.ProvisionPlan) -> None:
    assert found.roles == ()
    assert found.reasons.keys() == set(HOSTS)


def test_no_role_reads_variables_of_another_that_is_not_played_with_it() -> None:
    roles = Path(__file__).parents[3] / "roles"
    software = {"horovod", "mpi4py", "nccl", "openmpi", "python_env", "ucx"}
    word = re.compile(rf"\b({'|'.join(ROLES_OF_VARIABLES)})_[a-z0-9_]+")
    read = [path for path in roles.rglob("*") if path.suffix in {".yml", ".j2"} and "molecule" not in path.parts]
    plugins = roles.parent / "plugins"
    for path in (*read, *plugins.glob("action/*.py"), *plugins.glob("plugin_utils/**/*.py")):
        text = path.read_text(encoding="utf-8")
        by = path.relative_to(roles).parts[0] if path in read else path.stem.split("_")[0]
        tag = "software" if by in software or "recipes" in path.parts else by
        if tag not in {*PLAYED_ALONE, "hosts", "ssh_mesh"} or path.name == "argument_specs.yml":
            continue
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        foreign = {match[0] for match in word.finditer(code) if tag != ROLES_OF_VARIABLES[match[1]]} - READ_BY_SEVERAL
        known = {match for match in foreign if re.search(rf"^{match}:", defaults_of(match), re.MULTILINE)}
        assert not known, f"{path} reads {known}"


def defaults_of(variable: str) -> str:
    """Return the text of the defaults among which a variable would stand."""
    role = max((role for role in ROLES_OF_VARIABLES if variable.startswith(f"{role}_")), key=len)
    return (Path(__file__).parents[3] / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")


def test_an_address_that_went_away_is_a_reason() -> None:
    states = {**STATES, "node2": replace(STATES["node2"], lost_address="10.0.0.2")}
    assert decide(states) == {
        "node2": "address differs: the node has no longer 10.0.0.2, which its jobs are told to use"
    }


def test_what_has_drifted_is_told_apart_from_what_was_asked_for() -> None:
    states = {**STATES, "node2": replace(STATES["node2"], watch=({**WATCH[0], "sha256": "bb"}, WATCH[1]))}
    members = plan.cluster_of(states, {}, HOSTS)
    found = plan.decide(HOSTS, states, provisioned(), replace(INPUTS, inventory="x"), members)
    assert dict(found.reasons) == dict.fromkeys(HOSTS, "the inventory changed")
    assert dict(found.drifted) == {"node2": "/etc/hosts differs: content changed"}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (replace(INPUTS, inventory="x"), "the inventory changed"),
        (replace(INPUTS, content="x"), "the content of the playbook changed"),
        (replace(INPUTS, version="2"), "clusterctl's version changed"),
        (replace(INPUTS, inventory="x", options={"become": "False"}), "the inventory and an option changed"),
    ],
)
def test_other_inputs_mean_work_everywhere(inputs: Inputs, says: str) -> None:
    assert decide(STATES, inputs) == {"node1": says, "node2": says}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"platform": "debian-13"}, "platform differs: debian-13, was debian-12"),
        ({"user": "you"}, "login user differs: you, was me"),
        ({"gpus": "8 with driver 580.65"}, "differs: 8 with driver 580.65, was none"),
        ({"host_keys": ("ssh-ed25519 X",)}, "host key differs"),
        ({"watch": ()}, "/etc/hosts differs: missing; /usr/local/openmpi differs: missing"),
    ],
)
def test_drift_is_named(change: dict[str, object], says: str) -> None:
    states = {**STATES, "node2": replace(STATES["node2"], **change)}
    assert says in decide(states)["node2"]


def test_facts_beyond_those_of_the_snapshot_do_not_matter() -> None:
    more = ({**WATCH[0], "size": 7}, WATCH[1], {"path": "/etc/other", "kind": "file"})
    assert decide({**STATES, "node2": replace(STATES["node2"], watch=more)}) == {}


def test_a_host_that_only_ansible_reaches_is_always_provisioned() -> None:
    assert decide({"node1": STATES["node1"]}) == {"node2": "it can be looked at through Ansible only"}


def test_a_switched_off_host_outside_the_limit_changes_nothing() -> None:
    assert decide({"node1": STATES["node1"]}, selected=["node1"]) == {}


def test_an_upgrade_of_some_hosts_leaves_the_others_with_work() -> None:
    inputs, whole = replace(INPUTS, inventory="another version"), plan.cluster_of(STATES, {}, HOSTS)
    assert decide(STATES, inputs, selected=["node1"]) == {"node1": "the inventory changed"}
    fresh = plan.snapshots_after("run2", ["node1"], STATES, {"node1": WATCH}, inputs, whole)
    then = plan.decide(HOSTS, STATES, {**provisioned(), **fresh}, inputs, whole)
    assert dict(then.reasons) == {"node2": "the inventory changed"}
    assert "node2" not in then.as_left


def test_a_changed_host_outside_the_limit_is_news_for_the_others() -> None:
    states = {**STATES, "node2": replace(STATES["node2"], host_keys=("ssh-ed25519 X",))}
    assert decide(states, selected=["node1"]) == {"node1": "another node is new or has changed"}


def result(host: str, path: str, sha256: str, outcome: str = "ok") -> HostResult:
    return HostResult(at=1, host=host, stage="s", task="t", outcome=outcome, watch=({"path": path, "sha256": sha256},))  # type: ignore[arg-type]


def test_the_last_word_on_a_path_counts() -> None:
    results = [result("a", "/x", "1"), result("a", "/y", "2"), result("a", "/x", "3"), result("a", "/x", "4", "failed")]
    kept = ({"path": "/x", "sha256": "3", "role": "s"}, {"path": "/y", "sha256": "2", "role": "s"})
    assert plan.watch_of(results) == {"a": kept}


def test_a_host_with_nothing_to_watch_gets_no_snapshot() -> None:
    assert plan.snapshots_after("run", HOSTS, STATES, {"node1": WATCH}, INPUTS, plan.ClusterDigests("m")).keys() == {
        "node1"
    }


# --- differences between a host's snapshot and its present state, in words ---


FILE = {"path": "/etc/hosts", "kind": "file", "mode": "0644", "owner": "root", "group": "root", "sha256": "aa"}
KEYS = {**FILE, "path": "/home/me/.ssh/authorized_keys", "kind": "block", "marker": "ssh_mesh"}
LINK = {"path": "/usr/local/openmpi", "kind": "link", "target": "openmpi-5"}
TREE = {"path": "/usr/local/openmpi-5", "kind": "artifact", "marker_sha256": "m", "files": 7}
LIBRARY = {"path": "/lib/libz.so.1", "kind": "library"}
NCCL = "/usr/local/nccl/lib/libnccl.so.2"
LOADER = {"path": "/usr/local/lib/clusterctl/libnccl.so.2", "kind": "loader", "target": NCCL}
WATCHED: tuple[dict[str, Any], ...] = (FILE, KEYS, LINK, TREE, LIBRARY, LOADER)
TRAITS = {"host name": "node1", "limit of open files": "1024", "sshd's MaxStartups": "10:30:100"}
LEFT = NodeState("debian-12", ("ssh-ed25519 A",), "me", WATCHED, addresses=frozenset({"10.0.0.1"}), traits=TRAITS)
SNAPSHOT = factory.host_snapshot(
    *WATCHED, platform="debian-12", host_keys=("ssh-ed25519 A",), traits=TRAITS, address="10.0.0.1"
)
DAMAGE = "1 of 7 files are missing or changed, first lib/libmpi.so.40 (content)"


def with_entry(old: dict[str, Any], **new: Any) -> NodeState:
    return replace(LEFT, watch=tuple({**entry, **new} if entry is old else entry for entry in WATCHED))


def words(state: NodeState, snapshot: HostSnapshot = SNAPSHOT) -> list[str]:
    return [str(each) for each in plan.differences(snapshot, state)]


def test_a_host_as_it_was_left_has_no_difference() -> None:
    assert words(LEFT) == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (with_entry(FILE, mode="0666"), "/etc/hosts differs: mode 0666, was 0644"),
        (with_entry(FILE, owner="you", mode="0600"), "mode 0600, was 0644; owner you:root, was root:root"),
        (with_entry(FILE, sha256="bb"), "/etc/hosts differs: content changed"),
        (with_entry(FILE, kind="link", target="/etc/x"), "a link to /etc/x, was a file"),
        (with_entry(FILE, kind="absent"), "/etc/hosts differs: missing"),
        (with_entry(KEYS, sha256="bb"), "content of the block 'ssh_mesh' changed"),
        (with_entry(LINK, target="openmpi-4"), "it leads to openmpi-4, was openmpi-5"),
        (with_entry(TREE, files=DAMAGE), DAMAGE),
        (with_entry(TREE, marker_sha256="x"), "another installation"),
        (with_entry(LIBRARY, kind="absent"), "/lib/libz.so.1 differs: missing"),
        (with_entry(LOADER, kind="absent"), "libnccl.so.2 differs: missing in the loader's cache"),
        (with_entry(LOADER, target="/tmp/x"), f"libnccl.so.2 differs: it leads to /tmp/x, was {NCCL}"),  # noqa: S108
        (replace(LEFT, addresses=frozenset({"10.0.0.9"})), "10.0.0.1, by which the other nodes know it"),
        (replace(LEFT, traits={**TRAITS, "host name": "pypi"}), "host name differs: pypi, was node1"),
        (replace(LEFT, traits={**TRAITS, "limit of open files": "24"}), "limit of open files differs: 24, was 1024"),
        (
            replace(LEFT, traits={**TRAITS, "sshd's MaxStartups": "1:99:2"}),
            "sshd's MaxStartups differs: 1:99:2, was 10:30:100",
        ),
        (
            replace(LEFT, traits={**TRAITS, "sshd's AllowUsers": "root"}),
            "sshd's AllowUsers differs: root, was the default",
        ),
    ],
)
def test_each_difference_is_named(state: NodeState, says: str) -> None:
    (found,) = words(state)
    assert says in found


def test_an_older_snapshot_is_compared_by_what_it_holds() -> None:
    older = SNAPSHOT.model_dump(exclude={"traits", "address", "damaged"})
    older["watch"] = ({"path": "/etc/hosts", "kind": "file", "sha256": "aa"},)
    read = Snapshot.model_validate({"schema_version": 1, "hosts": {"node1": older}}).hosts["node1"]
    assert words(with_entry(FILE, mode="0666"), read) == []
    assert words(with_entry(FILE, sha256="bb"), read) == ["/etc/hosts differs: content changed"]


def test_damage_is_kept_until_a_comparison_of_everything_does_not_find_it() -> None:
    before, damaged = Snapshot(hosts={"node1": SNAPSHOT}), {"node1": with_entry(TREE, files=DAMAGE)}
    found = plan.with_damage(before, damaged, everything=False)
    assert found.hosts["node1"].damaged == (HostDifference(subject="/usr/local/openmpi-5", words=DAMAGE),)
    another_slice = plan.with_damage(found, {"node1": LEFT}, everything=False)
    assert another_slice == found
    assert [str(each) for each in plan.known_differences(another_slice.hosts["node1"], LEFT, verified=False)] == [
        f"/usr/local/openmpi-5 differs: {DAMAGE}"
    ], "sizes and modes are as they were, so the quick look needs the memory"
    assert plan.with_damage(found, {"node1": LEFT}, everything=True) == before
    assert plan.with_damage(before, {"node1": with_entry(FILE, sha256="bb")}, everything=True) == before


def test_damage_of_an_older_snapshot_is_read_and_kept() -> None:
    sentence = f"/usr/local/openmpi-5 differs: {DAMAGE}"
    older = {**SNAPSHOT.model_dump(mode="json"), "damaged": [sentence]}
    read = Snapshot.model_validate({"hosts": {"node1": older}})
    (known,) = plan.known_differences(read.hosts["node1"], LEFT, verified=False)
    assert (known.subject, known.words, str(known)) == ("/usr/local/openmpi-5", DAMAGE, sentence)
    assert Snapshot.model_validate_json(read.model_dump_json()) == read
    with pytest.raises(ValueError, match="damaged"):
        Snapshot.model_validate({"hosts": {"node1": {**older, "damaged": 3}}})


def test_equal_differences_are_told_once_by_node_set() -> None:
    one, two = (
        HostDifference(subject="/etc/hosts", words="missing"),
        HostDifference(subject="host name", words="x, was y"),
    )
    hosts = {"node1": (one,), "node2": (one, two), "node3": (one,), "node7": (one,)}
    assert plan.folded(hosts) == [("node[1-3,7]", one), ("node2", two)]
    assert plan.folded_words({"node1": "it is off", "node2": "it is off"}) == [("node[1-2]", "it is off")]


def test_the_controller_and_the_probe_cut_a_week_alike() -> None:
    assert SLICES == artifacts.SLICES
