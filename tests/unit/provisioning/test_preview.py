"""What a user is shown before hosts are changed."""

from __future__ import annotations

import factory
import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Settings
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import builders as builders_of
from clusterctl.cli import progress
from clusterctl.model.hosts import InventorySources
from clusterctl.provisioning.preview import preview

WHERE = InventorySources(("cluster.ini",))
READY = [factory.artifact(name, "1") for name in ("openmpi", "python_env", "mpi4py")]
PLATFORM = factory.node("node1").platform


def test_new_hosts_are_installed_and_what_the_cache_lacks_is_built_once() -> None:
    facts = {name: factory.node(name, artifacts=[]) for name in ("node1", "node2", "node3")}
    reasons = dict.fromkeys(facts, "not provisioned yet")
    found = preview(WHERE, list(facts), facts, reasons, {("mpi4py", PLATFORM), ("openmpi", "other")})
    assert found.builds == {("node1", "node2"): ("openmpi", "python_env")}
    assert found.installs == {("openmpi", "python_env", "mpi4py"): ("node1", "node2", "node3")}
    lines = "\n".join(progress.preview_lines(found))
    assert "3 hosts will be provisioned" in lines
    assert "build     Open MPI, the cluster's Python: once, on node[1-2]" in lines
    assert "install   node[1-3]: Open MPI, the cluster's Python, mpi4py" in lines
    assert "files     node[1-3]: not provisioned yet" in lines


@pytest.mark.parametrize(
    ("cached", "builders"),
    [({"python_env"}, ("node1",)), ({"openmpi", "mpi4py"}, ("node2",)), (set(), ("node1", "node2"))],
    ids=["mpi4py beside Open MPI", "Python alone", "all"],
)
def test_the_hosts_that_build_are_those_that_ansible_chooses(cached: set[str], builders: tuple[str, ...]) -> None:
    facts = {name: factory.node(name, artifacts=[]) for name in ("node1", "node2", "node3")}
    reasons = dict.fromkeys(facts, "not provisioned yet")
    (found,) = preview(WHERE, list(facts), facts, reasons, {(name, PLATFORM) for name in cached}).builds.items()
    assert found[0] == builders
    hosts = [Host(name, {"platform": PLATFORM}, {}, Settings({})) for name in facts]
    assert {builders_of(hosts, turn=name)[0].name for name in found[1]} == set(builders)


def test_growing_changes_files_of_the_old_hosts_and_builds_nothing() -> None:
    facts = {name: factory.node(name, artifacts=READY) for name in ("node1", "node2")}
    facts["node3"] = factory.node("node3", artifacts=[])
    reasons = {"node1": "another node is new", "node2": "another node is new", "node3": "not provisioned yet"}
    found = preview(WHERE, list(facts), facts, reasons, frozenset())
    assert found.builds == {}, "node1 has what the cache lacks, and it is copied from there"
    assert found.installs == {("openmpi", "python_env", "mpi4py"): ("node3",)}
    lines = progress.preview_lines(found)
    assert "  files     node[1-2]: another node is new" in lines
    assert not any(line.startswith("  build") for line in lines)


def test_a_host_that_only_ansible_can_look_at_is_named_too() -> None:
    found = preview(WHERE, ["far"], {}, {"far": "it can be looked at through Ansible only"}, frozenset())
    assert (found.platforms, found.builds, found.installs) == ({"unknown": ("far",)}, {}, {})
