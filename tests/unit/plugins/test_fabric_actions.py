"""The controller's side of the role: plan, the targets of each node, and the decision, without a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import (
    fabric_configure,
    fabric_connect,
    fabric_decide,
    fabric_listen,
    fabric_plan,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import network as node_network

TREES = Path(__file__).resolve().parents[2] / "data" / "fabric"
HOSTS = ("node1", "node2", "node3")
PLAN = {"members": [], "cidr": "", "interfaces": [], "probe": "auto"}
DECIDE = {
    "listens": "heard",
    "calls": "called",
    "pin_gid": False,
    "pin_hca": [],
}
NET = "10.0.0.0/24"


def node(number: int, tree: str = "none") -> dict[str, Any]:
    entries = [("eth0", f"10.0.0.{number}"), ("docker0", "172.17.0.1")]
    interfaces = [
        {
            "name": name,
            "kind": "physical",
            "up": True,
            "carrier": True,
            "mtu": 1500,
            "addresses": [{"family": 4, "address": address, "prefix": 24, "scope": "global"}],
        }
        for name, address in entries
    ]
    return {"interfaces": interfaces, "routes": [], "rdma": node_network.read_rdma(str(TREES / tree)), "fabric": None}


def play(trees: dict[str, str] | None = None) -> dict[str, Any]:
    nodes = {
        host: {"__preflight_look": {"node": node(n, (trees or {}).get(host, "none"))}}
        for n, host in enumerate(HOSTS, 1)
    }
    return {"ansible_play_hosts": list(HOSTS), "hostvars": nodes, "inventory_hostname": HOSTS[0]}


def of_host(variables: dict[str, Any], host: str) -> dict[str, Any]:
    found: dict[str, Any] = variables["hostvars"][host]["__preflight_look"]["node"]
    return found


def act(module: Any, variables: dict[str, Any], *, execute: Any = None, **arguments: Any) -> dict[str, Any]:
    task = MagicMock(args=arguments, async_val=0, check_mode=False, diff=False, delegate_to=None, environment=None)
    action = module.ActionModule(task, MagicMock(), MagicMock(check_mode=False), MagicMock(), MagicMock(), MagicMock())
    brought = execute or (lambda **given: {"executed": given["module_args"]})
    action._execute_module = brought  # noqa: SLF001 - what Ansible brings
    result: dict[str, Any] = action.run(None, variables)
    return result


def decided(variables: dict[str, Any], *, broken: set[str] | None = None, **more: Any) -> dict[str, Any]:
    plan = act(fabric_plan, variables, **more.pop("plan", PLAN))
    for host in HOSTS:
        variables["hostvars"][host]["heard"] = {"ports": {NET: 4000}, "problems": {}}
        variables["hostvars"][host]["called"] = {
            "results": [
                [NET, target, *(("timeout", "timed out") if broken == {host, target} else ("ok", "")), "40001"]
                for target in HOSTS
                if target != host
            ]
        }
    return act(fabric_decide, variables, plan=plan, **{**DECIDE, **more})


def test_the_plan_tells_everybody_where_to_listen_and_for_how_many() -> None:
    plan = act(fabric_plan, play(), **PLAN)
    assert plan["probe"]
    assert plan["listen"]["node2"]["addresses"] == {NET: "10.0.0.2"}
    assert plan["listen"]["node2"]["callers"] == 2
    assert len({one["token"] for one in plan["listen"].values()}) == 1


def test_a_node_calls_those_who_listen() -> None:
    variables = play()
    variables["plan"] = act(fabric_plan, variables, **PLAN)
    variables["hostvars"]["node2"]["heard"] = {"ports": {NET: 4002}}
    variables["hostvars"]["node3"]["heard"] = {"ports": {}, "problems": {NET: "cannot listen on 10.0.0.3"}}
    called = act(fabric_connect, variables, plan="plan", listens="heard", timeout_s=5)["executed"]
    assert called["targets"] == [
        {"network": NET, "source": "10.0.0.1", "name": "node2", "address": "10.0.0.2", "port": 4002}
    ]


def steps_of(module: Any, variables: dict[str, Any], **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the modules that an action calls on a node, with their arguments."""
    called: list[tuple[str, dict[str, Any]]] = []

    def execute(**given: Any) -> dict[str, Any]:
        called.append((given["module_name"].rpartition(".")[2], given["module_args"]))
        return {"changed": False}

    act(module, variables, execute=execute, **arguments)
    return called


def test_a_node_listens_behind_a_firewall_that_is_opened_only_where_that_is_asked_for() -> None:
    variables = play()
    variables["plan"] = act(fabric_plan, variables, **PLAN)
    (listen,) = steps_of(fabric_listen, variables, plan="plan", open_firewall="false")
    assert listen == ("fabric_listen", variables["plan"]["listen"]["node1"])
    opened, *rest = steps_of(fabric_listen, variables, plan="plan", open_firewall=True)
    assert rest == [listen]
    assert opened == ("fabric_firewall", {"networks": variables["plan"]["openings"]["node1"], "exact": False})


def test_without_a_trial_no_node_is_asked_for_anything() -> None:
    variables = {**play(), "plan": {"probe": False}}
    assert steps_of(fabric_listen, variables, plan="plan", open_firewall=True) == []
    assert steps_of(fabric_connect, variables, plan="plan", listens="heard", timeout_s=5) == []


def test_a_firewall_is_fitted_where_it_is_or_was_opened() -> None:
    variables = play()
    variables["decision"] = decided(variables, open_firewall=True)
    given = {"decision": "decision", "prefix": "/usr/local"}
    (files,) = steps_of(fabric_configure, variables, open_firewall=False, **given)
    assert files[0] == "file_set"
    texts = {one["path"]: one.get("content") for one in files[1]["files"]}
    assert "btl_tcp_if_include" in texts["/usr/local/etc/openmpi/openmpi-mca-params.conf"]
    networks = variables["decision"]["openings"]["node1"]
    opened = steps_of(fabric_configure, variables, open_firewall=True, **given)
    assert opened == [("fabric_firewall", {"networks": networks}), files]
    variables["__preflight_look"] = {"node": {"fabric": {"opened": True}}}
    closed = steps_of(fabric_configure, variables, open_firewall=False, **given)
    assert closed == [("fabric_firewall", {"networks": []}), files]


def test_the_decision_and_every_rejection_are_told_in_words() -> None:
    network, docker = decided(play())["told"]
    assert network.startswith(f"Network: eth0 {NET}: ")
    assert docker.startswith("Network: docker0 172.17.0.0/24 rejected: carries the same address")


def test_what_is_on_record_is_not_probed() -> None:
    variables = play()
    for host, files in decided(variables)["files"].items():
        of_host(variables, host)["fabric"] = {
            "cidrs": [NET],
            "interface": "eth0",
            "address": f"10.0.0.{host[-1]}",
            "proven": json.loads(files["record"])["proven"],
        }
        assert '"rejected": {"docker0 172.17.0.0/24": "carries the same address' in files["record"]
    plan = act(fabric_plan, variables, **PLAN)
    assert (plan["known"], plan["probe"], plan["pairs"]) == (True, False, [])


def grown(visited: tuple[str, ...]) -> dict[str, Any]:
    """Return a play that visits some nodes of a cluster whose node1 and node2 are proven with each other."""
    variables = play()
    variables["ansible_play_hosts"] = list(visited)
    for host, other in (("node1", "node2"), ("node2", "node1")):
        of_host(variables, host)["fabric"] = {
            "cidrs": [NET],
            "interface": "eth0",
            "address": f"10.0.0.{host[-1]}",
            "proven": [other],
        }
    return variables


MEMBERS = [{"name": host, "address": f"10.0.0.{host[-1]}"} for host in HOSTS]


def test_a_run_that_visits_the_new_node_alone_says_that_nothing_is_proven_and_the_next_one_proves_it() -> None:
    variables = grown(("node3",))
    plan = act(fabric_plan, variables, **{**PLAN, "members": MEMBERS})
    made = act(fabric_decide, variables, plan=plan, **DECIDE)
    (warning,) = made["warnings"]
    assert "node3 and node[1-2]" in warning
    assert "a run without --limit proves it" in warning
    said = json.loads(made["files"]["node3"]["record"])
    assert said["proven"] == []
    assert "as proven before" not in made["msg"]
    variables = grown(HOSTS)
    of_host(variables, "node3")["fabric"] = said
    assert act(fabric_plan, variables, **{**PLAN, "members": MEMBERS})["probe"], "the new node is not proven yet"


def test_a_run_on_proven_nodes_keeps_their_proof_with_the_others() -> None:
    variables = grown(("node1", "node2"))
    of_host(variables, "node1")["fabric"]["proven"] = ["node2", "node3"]
    plan = act(fabric_plan, variables, **{**PLAN, "members": MEMBERS})
    assert not plan["probe"]
    made = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert json.loads(made["files"]["node1"]["record"])["proven"] == ["node2", "node3"]
    assert "node2 and node3" in made["warnings"][0]


def test_a_connection_that_fails_is_named_with_both_ends() -> None:
    failed = decided(play(), broken={"node1", "node3"})
    assert failed["failed"]
    assert failed["msg"].startswith("No network carries connections between all nodes; ")
    problems = [one for one in failed["problems"] if one["check"] == f"eth0 {NET}"]
    assert [one["host"] for one in problems] == ["node1", "node3"]
    assert {one["problem"] for one in problems} == {"node1 to node3: timed out; node3 to node1: timed out"}


def test_a_node_that_alone_claims_that_others_do_not_answer_is_left_alone() -> None:
    variables = play()
    plan = act(fabric_plan, variables, **PLAN)
    assert not decided(variables).get("failed")
    lies = [[NET, target, "timeout", "made up", "40001"] for target in HOSTS[:2]]
    variables["hostvars"]["node3"]["called"] = {"results": lies}
    made = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert not made.get("failed"), "the others have a network"
    assert made["msg"].startswith(f"eth0 {NET}: ")
    assert "made up" not in json.dumps(made["warnings"])
    assert json.loads(made["files"]["node1"]["record"])["proven"] == ["node2"]
    given = {"decision": "decision", "facts": "seen", "prefix": "/usr/local", "open_firewall": False}
    variables["decision"] = made
    for host in HOSTS:
        variables["inventory_hostname"] = host
        result = act(fabric_configure, variables, execute=lambda **_: {"changed": False}, **given)
        assert bool(result.get("failed")) is (host == "node3")
    assert [one["host"] for one in result["problems"]] == ["node3"]
    assert "; node[1-2] can be reached by other nodes, and the way back works" in result["msg"]


def test_a_node_that_nobody_reaches_is_named_alone() -> None:
    variables = play()
    plan = act(fabric_plan, variables, **PLAN)
    decided(variables)
    for host in HOSTS:
        for one in variables["hostvars"][host]["called"]["results"]:
            one[2:4] = ("timeout", "timed out") if "node2" in (host, one[1]) else one[2:4]
    failed = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert failed["failed"]
    assert {one["host"] for one in failed["problems"] if one["check"] == f"eth0 {NET}"} == {"node2"}


def test_an_answer_that_never_came_is_no_success() -> None:
    variables = play()
    plan = act(fabric_plan, variables, **PLAN)
    failed = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert failed["failed"]
    assert "gave no result" in failed["msg"]


@pytest.mark.parametrize(
    ("given", "hosts"),
    [({"cidr": "10.9.0.0/24"}, HOSTS), ({"cidr": "10.0.0.0/99"}, HOSTS[:1]), ({"interfaces": ["docker0"]}, HOSTS)],
)
def test_a_pin_that_cannot_be_kept_is_a_wrong_configuration(given: dict[str, Any], hosts: tuple[str, ...]) -> None:
    refused = act(fabric_plan, play(), **{**PLAN, **given})
    assert refused["failed"]
    assert [(one["host"], one["kind"]) for one in refused["problems"]] == [(host, "configuration") for host in hosts]


def test_nccl_is_told_what_was_asked_for() -> None:
    trees = {"node1": "roce", "node2": "roce_shifted"}
    made = decided(play(trees), pin_gid=True)
    assert made["files"]["node1"]["nccl"] == "NCCL_IB_GID_INDEX=3\nNCCL_SOCKET_IFNAME==eth0\n"
    assert made["files"]["node2"]["nccl"] == "NCCL_IB_GID_INDEX=9\nNCCL_SOCKET_IFNAME==eth0\n"
    assert made["files"]["node3"]["nccl"] == "NCCL_SOCKET_IFNAME==eth0\n"
    assert made["warnings"] == []
    refused = decided(play(trees), pin_hca=["mlx5_0"])
    assert [(one["host"], one["kind"]) for one in refused["problems"]] == [("node3", "configuration")]


def test_one_node_needs_no_proof_and_no_network() -> None:
    variables = play()
    variables["ansible_play_hosts"] = ["node1"]
    plan = act(fabric_plan, variables, **PLAN)
    assert not plan["probe"]
    of_host(variables, "node1")["interfaces"] = []
    plan = act(fabric_plan, variables, **PLAN)
    made = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert made["files"]["node1"] == {"openmpi": "", "prrte": "", "nccl": "", "record": ""}


_HEARD = [5, [], "x", None, {"ports": [NET]}, {"ports": {NET: "22; x"}}, {"ports": {NET: []}}, {"ports": {NET: 70000}}]
_HEARD += [{"ports": {NET: True}}, {"ports": 5}, {"problems": 5}, {"problems": [NET]}, {"problems": {NET: {"a": 1}}}]
_CALLED = [5, {"results": 5}, {"results": [5]}, {"results": [[NET, "node1"]]}, {"results": [[[], {}, [], {}, ""]]}]
_CALLED += [
    {"results": [[NET, "node1", [], {}, []]]},
    {"results": {"a": 1}},
    {"results": [[NET, "node1", "best", 5, "7"]]},
]


@pytest.mark.parametrize("said", _HEARD)
def test_a_listener_of_another_form_fails_no_other_node(said: object) -> None:
    variables = play()
    variables["plan"] = act(fabric_plan, variables, **PLAN)
    variables["hostvars"]["node2"]["heard"] = said
    variables["hostvars"]["node3"]["heard"] = {"ports": {NET: 4003}}
    called = act(fabric_connect, variables, plan="plan", listens="heard", timeout_s=5)["executed"]
    assert [(one["name"], one["port"]) for one in called["targets"]] == [("node3", 4003)]


@pytest.mark.parametrize(("key", "said"), [*(("heard", one) for one in _HEARD), *(("called", one) for one in _CALLED)])
def test_an_answer_of_another_form_is_a_failed_connection_of_its_node(key: str, said: object) -> None:
    variables = play()
    plan = act(fabric_plan, variables, **PLAN)
    for host in HOSTS:
        variables["hostvars"][host]["heard"] = {"ports": {NET: 4000}, "problems": {}}
        results = [[NET, target, "ok", "", "40001"] for target in HOSTS if target != host]
        variables["hostvars"][host]["called"] = {"results": results}
    variables["hostvars"]["node3"] = {**variables["hostvars"]["node3"], "called": {}, key: said}
    decided = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert not decided.get("failed"), "a node that gives no result stops no other"
    assert list(decided["disputed"]) == ["node3"]


def test_what_a_node_says_of_a_connection_is_one_bounded_line() -> None:
    variables = play()
    decided_of = decided(variables, broken={"node3", "node1"})
    assert decided_of["failed"]
    variables["hostvars"]["node3"]["called"]["results"][0][3] = "no\n\x1b[2Jroute " + "x" * 100000
    plan = act(fabric_plan, variables, **PLAN)
    said = act(fabric_decide, variables, plan=plan, **DECIDE)
    assert "\x1b" not in json.dumps(said, ensure_ascii=False).replace("\\u001b", "\x1b")
    assert len(said["msg"]) < 5000


def test_the_network_reaches_ucx_where_the_cluster_has_it_and_nowhere_else() -> None:
    def texts(asked: str, provides: str = "", *artifacts: str) -> dict[str, str | None]:
        variables = play()
        plan = {**PLAN, "members": [{"name": host, "provides": [provides]} for host in HOSTS]}
        for host in HOSTS:
            of_host(variables, host)["artifacts"] = [{"name": name} for name in artifacts]
        found = decided(variables, plan=plan, ucx=asked)["files"]
        return {host: files.get("ucx") for host, files in found.items()}

    assert texts("auto") == dict.fromkeys(HOSTS, None)
    assert texts("never", "rdma") == dict.fromkeys(HOSTS, None)
    assert texts("always") == texts("auto", "rdma") == dict.fromkeys(HOSTS, "UCX_NET_DEVICES=eth0\n")
    assert texts("never", "rdma", "ucx") == dict.fromkeys(HOSTS, ""), "what was written before goes"


def test_nvlink_without_a_build_with_cuda_brings_no_file_of_ucx() -> None:
    its = {"platform": "p", "provides": ["libcuda", "cuda_toolkit", "nvlink"]}
    plan = {**PLAN, "members": [{"name": host, **its} for host in HOSTS]}

    def has_file(asked: str) -> bool:
        variables = play()
        for host in HOSTS:
            variables["hostvars"][host]["openmpi_cuda"] = asked
        return "ucx" in decided(variables, plan=plan, ucx="auto")["files"]["node1"]

    assert has_file("auto")
    assert not has_file("never")


def test_ucx_gets_the_ports_that_are_up_before_the_interface() -> None:
    variables = play({"node1": "roce", "node2": "infiniband"})
    plan = {**PLAN, "members": [{"name": "node1", "provides": ["rdma"]}]}
    found = decided(variables, plan=plan, ucx="auto")["files"]
    words = {host: files["ucx"].strip().removeprefix("UCX_NET_DEVICES=").split(",") for host, files in found.items()}
    assert all(one[-1] == "eth0" for one in words.values())
    assert all(one.startswith("mlx5_") and one.endswith(":1") for host in HOSTS[:2] for one in words[host][:-1])
    assert [len(words[host]) > 1 for host in HOSTS] == [True, True, False]


def test_ucx_conf_is_a_block_in_a_folder_that_comes_with_it() -> None:
    texts = {"openmpi": "", "prrte": "", "nccl": "", "record": ""}
    paths = [one["path"] for one in fabric_configure.files_of("/usr/local", texts)]
    assert not [path for path in paths if "ucx" in path], "no file for a cluster without UCX"
    entries = fabric_configure.files_of("/usr/local", {**texts, "ucx": "UCX_NET_DEVICES=eth0\n"})
    assert {"path": "/usr/local/etc/ucx", "state": "directory"} in entries
    (conf,) = [one for one in entries if one["path"] == "/usr/local/etc/ucx/ucx.conf"]
    assert (conf["state"], conf["content"]) == ("block", "UCX_NET_DEVICES=eth0\n")
    gone = fabric_configure.files_of("/usr/local", {**texts, "ucx": ""})
    assert [one["state"] for one in gone if "ucx" in one["path"]] == ["block"]
