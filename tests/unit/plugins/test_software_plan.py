"""The decision that is made once for all hosts: which roles count, what refuses, and whose settings count."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import software_plan
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import variables
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Plan,
    Refusal,
    Settings,
    places,
)

ALL = list(software_plan.RECIPES)


@pytest.mark.parametrize(
    ("run", "skip", "chosen"),
    [
        (["all"], [], ALL),
        ([], [], ALL),
        (["software"], [], ALL),
        (["hosts"], [], []),
        (["openmpi", "hosts"], [], ["openmpi"]),
        (["all"], ["horovod"], ALL[:-1]),
        (["openmpi", "nccl"], ["nccl"], ["openmpi"]),
        (["all"], ["software"], []),
        (["preflight"], [], ALL),  # what is refused is told
    ],
)
def test_tags_choose_among_the_roles(run: list[str], skip: list[str], chosen: list[str]) -> None:
    assert software_plan.chosen_by_tags(ALL, run, skip) == chosen


@pytest.mark.parametrize(
    ("chosen", "asked", "decided"),
    [
        (["ucx"], ALL, {"ucx"}),  # mpi4py would miss an Open MPI
        (["openmpi"], ALL, {"ucx", "openmpi"}),
        (["horovod"], ALL, {*ALL} - {"mpi4py"}),
        (["horovod"], ["horovod"], {"horovod"}),
        ([], ALL, set()),
    ],
)
def test_what_a_chosen_role_does_not_stand_on_is_not_decided(
    chosen: list[str], asked: list[str], decided: set[str]
) -> None:
    assert software_plan.needed(chosen, asked) == decided


def test_equal_refusals_of_several_hosts_share_a_line() -> None:
    refusals = [
        Refusal("", "No source of Open MPI 9 is known; set openmpi_sha256."),
        Refusal("node1", "openmpi_pmix is external: it differs; install one."),
        Refusal("node2", "openmpi_pmix is external: it differs; install one."),
        Refusal("node3", "node3 has no Open MPI; run the role openmpi before."),
    ]
    assert software_plan.told(refusals).splitlines() == [
        "No source of Open MPI 9 is known; set openmpi_sha256.",
        "node1, node2: openmpi_pmix is external: it differs; install one.",
        "node3 has no Open MPI; run the role openmpi before.",
    ]
    assert software_plan.problem("openmpi", refusals[0]) == {
        "host": "",
        "check": "openmpi",
        "problem": "No source of Open MPI 9 is known",
        "cure": "set openmpi_sha256",
        "kind": "configuration",
    }


def test_what_an_earlier_role_of_the_play_brought_is_there() -> None:
    """A play of single roles looks at the nodes once, before the first of them."""
    node = {"artifacts": [{"name": "openmpi", "key": "old", "version": "1", "link": "/l/openmpi", "tree": "/l/x"}]}
    new = {"name": "openmpi", "key": "new", "version": "2", "link": "/l/openmpi", "hosts": ["node1"], "build": {}}
    found = software_plan.with_brought(node, "node1", [new])["artifacts"]
    assert found == [{"name": "openmpi", "key": "new", "version": "2", "link": "/l/openmpi"}]
    assert software_plan.with_brought(node, "node2", [new])["artifacts"] == node["artifacts"]


@pytest.mark.parametrize(("pattern", "hosts"), [("all", ["a", "b"]), ("!all", []), ("b,c", ["b"]), ("b,a", ["a", "b"])])
def test_which_hosts_get_what_is_decided_for_all(pattern: str, hosts: list[str]) -> None:
    assert software_plan.getting(pattern, ["a", "b"]) == hosts


def test_a_horovod_that_a_host_is_to_have_no_longer_leaves() -> None:
    def node(name: str, key: str = "k") -> dict[str, Any]:
        return {"artifacts": [{"name": name, "key": key, "version": "1", "link": f"/l/{name}"}]}

    nodes = {"a": node("horovod"), "b": node("horovod"), "c": node("openmpi"), "d": node("horovod", ""), "e": {}}
    its = {"role": "horovod", "name": "horovod", "version": "1", "inputs": {}, "prefix": "/l", "round": 1, "build": {}}
    wanted = Artifact(hosts=["a"], builders=["a"], **its)
    assert software_plan.leaving(Plan([wanted]), nodes) == {"b": ["/l/horovod"]}


class HostVars(dict[str, dict[str, Any]]):
    """As Ansible's, but its values hold no templates."""

    raw_get = dict.__getitem__


def of_hosts(play: dict[str, Any], **inventory: dict[str, Any]) -> dict[str, Any]:
    """Return openmpi_version of each host, and the variables are those of the first one."""
    first = next(iter(inventory))
    own = {"inventory_hostname": first, **inventory[first], **play}

    def template(value: str, its: Any) -> str:
        return value.replace("{{ x }}", str(its["x"]))

    found = variables.of_hosts(["openmpi"], list(inventory), {**own, "hostvars": HostVars(inventory)}, template)
    return {name: settings.text("openmpi_version") for name, settings in found.items()}


@pytest.mark.parametrize(
    ("play", "versions"),
    [
        ({}, ("4.1.8", "5.0.7")),  # the inventory of the first host alone, and the default
        ({"openmpi_version": "5.0.9"}, ("5.0.9", "5.0.9")),  # a play, or a role's entry in it, counts for all
        ({"openmpi_version": "5.0.{{ x }}"}, ("5.0.1", "5.0.2")),  # with the variables of each host
    ],
)
def test_whose_settings_count(play: dict[str, Any], versions: tuple[str, str]) -> None:
    one = {"x": 1, "openmpi_version": "4.1.8"}
    assert tuple(of_hosts(play, node1=one, node2={"x": 2}).values()) == versions
    if play:
        assert tuple(of_hosts(play, node1={"x": 1}, node2={"x": 2}).values()) == versions


def test_a_default_in_scope_is_no_setting_of_the_play() -> None:
    """A role's defaults are among the variables of its tasks."""
    assert of_hosts({"openmpi_version": "5.0.7"}, node1={}, node2={"openmpi_version": "4.1.8"}) == {
        "node1": "5.0.7",
        "node2": "4.1.8",
    }


def test_the_folders_of_builds_are_shared_and_part_hosts_that_have_others() -> None:
    given = variables.defaults(["openmpi"])
    assert {name for name in given if not name.startswith("openmpi_")} == {
        f"preflight_{name}_dir" for name in ("cache", "work", "log", "controller_log")
    }
    usual, other = Settings(given), Settings(given | {"preflight_work_dir": "/scratch"})
    assert places(other)["work_dir"] == "/scratch"
    assert usual.of("openmpi") != other.of("openmpi")
