"""What the mesh does on a node, step by step: no node accepts the new trust alone before all nodes accept both."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_apply, ssh_mesh_sign
from ansible_collections.clusterctl.hpc.plugins.module_utils.job_account import missing
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look, mesh_steps

HOSTS = ("node1", "node2", "node3")
KEYS = {"authorized_keys": "KEYS\n", "known_hosts": "HOST KEYS\n"}
AUTHORITY = {"authorized_keys": "AUTHORITY\n", "known_hosts": "HOST AUTHORITY\n"}
BOTH = {name: AUTHORITY[name] + KEYS[name] for name in KEYS}
NOTHING = dict.fromkeys(KEYS, "")
HOME = "/home/mpi/.ssh"
AUTHORIZED, KNOWN = f"{HOME}/authorized_keys", "/etc/ssh/ssh_known_hosts"
PLAN = {
    **KEYS,
    "client_config": "OF KEYS\n",
    "own": {},
    "inventory": list(HOSTS),
    "logins": {host: [{"name": name} for name in HOSTS if name != host] for host in HOSTS},
}
SIGNED = {
    **AUTHORITY,
    "both": BOTH,
    "client_config": "OF THE AUTHORITY\n",
    "own": {},
    "certificates": {host: {"user": f"user of {host}", "host": f"host of {host}"} for host in HOSTS},
    "revoked": "AAAA",
}


def said(
    lines: dict[str, str] = NOTHING, *, has_keys: bool = False, remains: bool = False, **more: Any
) -> dict[str, Any]:
    """What mesh_key returns."""
    its = {**missing("mpi", [])["authorized_keys"], "path": AUTHORIZED, "folder": HOME}
    trust = {"user_path": f"{HOME}/id-cert.pub", "has_keys": has_keys, "remains": remains, "lines": lines}
    good = {"user": "mpi", "is_missing": False, "authorized_keys": its, "login_keys": "PEOPLE\n", "client_block": ""}
    return {**good, "former": [], "trust": trust, **more}


def node(look: dict[str, Any], trust: str = "keys", *, is_partial: bool = False) -> mesh_steps.Node:
    return mesh_steps.Node("node1", mesh_look.of_files("node1", look), trust, PLAN, SIGNED, is_partial)


def files(steps: list[mesh_steps.Step]) -> dict[str, dict[str, Any]]:
    """The paths that file_set gets."""
    return {one["path"]: one for module, given in steps if module == "file_set" for one in given["files"]}


def contents(steps: list[mesh_steps.Step]) -> tuple[str, str]:
    found = files(steps)
    return found[AUTHORIZED]["content"], found[KNOWN]["content"]


@pytest.mark.parametrize(("trust", "texts"), [("keys", KEYS), ("ca", AUTHORITY)])
def test_without_a_change_of_trust_the_final_texts_come_at_once(trust: str, texts: dict[str, str]) -> None:
    its = node(said(lines=AUTHORITY) if trust == "ca" else said(has_keys=True), trust)
    steps = mesh_steps.lay_out(its)
    assert contents(steps) == (texts["authorized_keys"] + "PEOPLE\n", texts["known_hosts"])
    assert files(steps)[AUTHORIZED]["watch"] == "block"
    assert "watch" not in files(steps)[KNOWN]
    assert [module for module, _given in steps] == (
        ["mesh_certificates", "file_set"] if trust == "ca" else ["file_set"]
    )
    assert [module for module, _given in mesh_steps.login(its, HOSTS)] == ["mesh_login"]


@pytest.mark.parametrize(
    ("trust", "look", "meanwhile", "final"),
    [
        ("ca", said(has_keys=True), BOTH, AUTHORITY),
        ("keys", said(AUTHORITY), {name: KEYS[name] + AUTHORITY[name] for name in KEYS}, KEYS),
    ],
)
def test_where_trust_changes_the_first_texts_accept_both(
    trust: str, look: dict[str, Any], meanwhile: dict[str, str], final: dict[str, str]
) -> None:
    its = node(look, trust)
    first, last = mesh_steps.lay_out(its), mesh_steps.login(its, HOSTS)
    assert contents(first) == (meanwhile["authorized_keys"] + "PEOPLE\n", meanwhile["known_hosts"])
    assert {files(first)[path]["watch"] for path in (AUTHORIZED, KNOWN)} == {"none"}, "the final state is watched"
    assert contents(last) == (final["authorized_keys"] + "PEOPLE\n", final["known_hosts"])
    assert set(files(last)) == {AUTHORIZED, KNOWN}
    assert files(last)[AUTHORIZED]["watch"] == "block"
    assert [module for module, _given in last] == ["file_set", "mesh_login"], "it logs in with the final texts"


def test_a_partial_run_keeps_the_lines_of_the_authority() -> None:
    its = node(said(AUTHORITY), is_partial=True)
    for steps in (mesh_steps.lay_out(its), mesh_steps.login(its, HOSTS)):
        assert contents(steps) == ("KEYS\nAUTHORITY\nPEOPLE\n", "HOST KEYS\nHOST AUTHORITY\n")
    certified = mesh_steps.lay_out(node(said(AUTHORITY), "ca", is_partial=True))
    assert contents(certified) == ("AUTHORITY\nPEOPLE\n", "HOST AUTHORITY\n")
    assert mesh_steps.is_partial(PLAN, HOSTS[:2])
    assert not mesh_steps.is_partial(PLAN, [*HOSTS, "node9"])


def test_a_node_that_knows_more_hosts_has_texts_of_its_own() -> None:
    own = {"authorized_keys": "MORE\n", "known_hosts": "MORE HOSTS\n", "client_config": "OF MORE\n", "both": BOTH}
    plan, signed = ({**texts, "own": {"node1": own}} for texts in (PLAN, SIGNED))
    for trust in ("keys", "ca"):
        steps = mesh_steps.lay_out(dataclasses.replace(node(said(), trust), plan=plan, signed=signed))
        assert contents(steps) == ("MORE\nPEOPLE\n", "MORE HOSTS\n")
        assert files(steps)["/etc/ssh/ssh_config.d/00-clusterctl.conf"]["content"] == "OF MORE\n"


def test_an_account_that_only_check_mode_lacks_has_no_step() -> None:
    for trust in ("keys", "ca"):
        its = node(missing("mpi", ["created user mpi"]), trust)
        assert mesh_steps.lay_out(its) == mesh_steps.login(its, HOSTS, switched_key="id") == []


def test_roots_file_is_written_by_root_and_a_users_by_the_user() -> None:
    of_root = {**said()["authorized_keys"], "path": "/etc/ssh/keys/mpi", "user": "", "owner": "root", "group": "root"}
    for look, who in ((said(), {"mpi"}), (said(authorized_keys=of_root), {None})):
        found = files(mesh_steps.lay_out(node(look)))
        its = look["authorized_keys"]
        assert {found[path].get("user") for path in (its["path"], its["folder"])} == who
        assert found[its["folder"]]["mode"] == "0700"


def test_a_node_gets_its_own_certificates() -> None:
    (module, given), _files = mesh_steps.lay_out(node(said(), "ca"))
    assert module == "mesh_certificates"
    assert given == {
        "user": "mpi",
        "user_path": f"{HOME}/id-cert.pub",
        "user_certificate": "user of node1",
        "host_certificate": "host of node1",
        "revoked": "AAAA",
    }


def test_the_new_key_is_used_before_the_logins_to_the_hosts_that_take_part() -> None:
    steps = mesh_steps.login(node(said()), ["node1", "node3"], switched_key="id_clusterctl", timeout_s=7)
    assert steps == [
        ("mesh_key", {"user": "mpi", "name": "id_clusterctl", "rotation": "switch"}),
        (
            "mesh_login",
            {"origin": "node1", "user": "mpi", "targets": [{"name": "node3"}], "timeout_s": 7, "tolerate": True},
        ),
    ]
    assert mesh_steps.login(node(said()), HOSTS, verify="none") == []


# --- what is left to do ---


def test_the_rare_tasks_run_where_any_host_needs_them() -> None:
    def left(one: dict[str, Any], trust: str = "keys", *, is_partial: bool = False) -> dict[str, Any]:
        looks = {"node1": mesh_look.of_files("node1", said()), "node2": mesh_look.of_files("node2", one)}
        return mesh_steps.left_to_do(looks, {"node1": {}, "node2": {}}, trust, is_partial=is_partial)

    nothing = {"refused": [], "certificates": [], "unfinished": False}
    assert left(said()) == nothing
    assert left(said(former=[{"path": "/home/old/.ssh/authorized_keys"}])) == {**nothing, "unfinished": True}
    assert left(said(remains=True)) == {"refused": [], "certificates": ["node2"], "unfinished": True}
    assert left(said(remains=True), is_partial=True) == left(said(remains=True), "ca") == nothing
    assert left(missing("mpi", [])) == nothing


# --- the actions ---


def act(
    phase: str, answers: dict[str, dict[str, Any]], look: Any, module: Any = ssh_mesh_apply, **arguments: Any
) -> tuple[dict[str, Any], list[str]]:
    """Run an action on node1; returns its result and the modules that it called."""
    given = {"look": "key", "plan": "plan", "signed": "signed", "trust": "ca", "phase": phase, **arguments}
    task = MagicMock(args=given, async_val=0, check_mode=False)
    action = module.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
    called: list[str] = []

    def execute(module_name: str, **_given: Any) -> dict[str, Any]:
        called.append(module_name.rpartition(".")[2])
        return answers.get(called[-1], {"changed": False, "changes": [], "watch": []})

    action._execute_module = execute  # noqa: SLF001 - what Ansible brings
    variables = {"inventory_hostname": "node1", "ansible_play_hosts": list(HOSTS), "key": look, "plan": PLAN}
    result: dict[str, Any] = action.run(None, {**variables, "signed": SIGNED})
    return result, called


LOGIN = {"rotate": True, "key_name": "id_clusterctl", "verify": "ring", "timeout_s": 20}


def test_results_of_the_modules_are_one() -> None:
    answers = {
        "file_set": {"changed": True, "changes": ["a"], "watch": [{"path": "/a"}], "diff": [{"before": "1"}]},
        "mesh_key": {"changed": True, "changes": ["b"], "watch": [], "warnings": ["one"]},
        "mesh_login": {"changed": False, "changes": [], "watch": [], "refused": ["node2"], "warnings": ["two"]},
    }
    result, called = act("login", answers, said(has_keys=True), **LOGIN)
    assert called == ["file_set", "mesh_key", "mesh_login"]
    assert (result["changed"], result["changes"], result["watch"]) == (True, ["a", "b"], [{"path": "/a"}])
    assert (result["diff"], result["warnings"]) == ([{"before": "1"}], ["one", "two"])
    assert result["refused"] == ["node2"]
    assert "failed" not in result


def test_a_step_that_fails_is_the_last_one() -> None:
    answers = {
        "mesh_certificates": {"changed": True, "changes": ["a"], "watch": [{"path": "/a"}]},
        "file_set": {"failed": True, "msg": "No space left.", "changes": [], "watch": []},
    }
    result, called = act("lay_out", answers, said())
    assert called == ["mesh_certificates", "file_set"]
    assert (result["failed"], result["msg"], result["watch"]) == (True, "No space left.", [{"path": "/a"}])
    _, called = act("login", {"mesh_key": {"failed": True, "msg": "no"}}, said(), **LOGIN)
    assert called == ["mesh_key"]


@pytest.mark.parametrize("odd", [5, "x", {"a": 1}, [[]], None])
def test_lists_of_another_form_end_no_task(odd: Any) -> None:
    result, called = act("login", {"mesh_key": {"changes": odd, "watch": odd, "diff": odd}}, said(), **LOGIN)
    assert called == ["mesh_key", "mesh_login"]
    assert isinstance(result["changes"], list)


@pytest.mark.parametrize(
    "changed",
    [
        {"is_missing": "no"},
        {"authorized_keys": []},
        {"authorized_keys": {"path": "/x"}},
        {"login_keys": 5},
        {"client_block": None},
        {"former": {"a": 1}},
        {"trust": {}},
        {"trust": {**said()["trust"], "lines": {"authorized_keys": [], "known_hosts": ""}}},
        {"trust": {**said()["trust"], "has_keys": "x"}},
        {"user": {"a": 1}},
    ],
)
def test_an_answer_of_another_form_is_a_problem_of_its_node(changed: dict[str, Any]) -> None:
    result, called = act("lay_out", {}, {**said(), **changed})
    assert called == []
    assert result["failed"]
    assert [(one["host"], one["kind"]) for one in result["problems"]] == [("node1", "host")]


def test_without_an_authority_nothing_is_signed_or_refused() -> None:
    for arguments in ({"looks": "key", "plan": "plan"}, {"only_check": True}):
        result, called = act("", {}, said(), ssh_mesh_sign, folder="", **{**arguments, "trust": "keys"})
        assert not result.get("failed")
        assert called == []
