from __future__ import annotations

import dataclasses

from clusterctl.diagnosis.rules import registry
from clusterctl.model.hosts import Host
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import login_probe
from doctor_view import NODES, failing, seen, told


def test_nodes_without_a_key_are_known_not_to_log_in() -> None:
    said = {"mesh": False, "passed": 0, "failures": [], "untried": 3, "stopped_early": False, "keyless": True}
    view = dataclasses.replace(seen(), logins=dict.fromkeys(NODES, login_probe.read(said, None)))
    assert told(view) == [("ssh", "error", NODES)]
    assert registry.notes(view) == ("Logins from node[1-4]: not tried, since they have no key to log in with.",)


def test_a_changed_key_is_the_one_s_who_shows_it_or_the_one_s_who_remembers_it_wrongly() -> None:
    shown = failing(seen(), *((source, "node4", "key_changed") for source in NODES[:3]))
    (found,) = registry.diagnose(shown)
    assert (found.check, found.hosts) == ("host_key", ("node4",))
    assert found.cause == "it shows a host key that is not the one that node[1-3] know"
    (found,) = registry.diagnose(failing(seen(), ("node2", "node3", "key_changed")))
    assert (found.hosts, found.cause) == (
        ("node2",),
        "its known_hosts has another host key for node3 than is shown there",
    )


def test_logins_to_a_node_that_is_down_say_nothing_new() -> None:
    view = failing(seen(), *((source, "node4", "timeout") for source in NODES[:3]))
    down = ProbeFailure("node4", "unreachable", "node4 (10.0.0.4 port 22) does not answer; see that it is up.")
    nodes = {name: node for name, node in view.nodes.items() if name != "node4"}
    reports = {name: one for name, one in view.logins.items() if name != "node4"}
    view = dataclasses.replace(view, nodes=nodes, logins=reports, failures={"node4": down})
    (found,) = registry.diagnose(view)
    assert (found.check, found.hosts) == ("reachable", ("node4",))
    assert (found.cause, found.cure) == ("node4 (10.0.0.4 port 22) does not answer", "see that it is up")


def test_a_sample_of_the_logins_names_a_node_and_says_that_it_is_a_sample() -> None:
    view = seen()
    near = {name: (NODES[(at + 1) % 4], NODES[(at + 2) % 4]) for at, name in enumerate(NODES)}
    reports = {name: dataclasses.replace(one, passed=2, targets=near[name]) for name, one in view.logins.items()}
    others = tuple(Host(f"node{number}", f"10.0.0.{number}") for number in range(5, 9))  # more hosts than were tried
    view = dataclasses.replace(view, logins=reports, hosts=(*view.hosts, *others))
    view = failing(view, *((name, "node4", "refused") for name in NODES[1:3]))
    (found,) = registry.diagnose(view)
    assert found.hosts == ("node4",)
    assert registry.notes(view) == (
        "Logins between nodes: each of 4 nodes was asked to try 2 others; a fault of one pair alone may be missed.",
    )
