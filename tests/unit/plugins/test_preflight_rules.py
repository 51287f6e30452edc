"""The rules of preflight: facts in, problems out."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import preflight_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine

DATA = Path(__file__).resolve().parents[2] / "data"
SCRATCH = "/var/tmp"  # noqa: S108 - a name in facts, nothing is written there
LIMITS = rules.Limits(
    supported={"debian": ["12", "13"], "ubuntu": ["22.04"], "rocky": ["9"]},
    min_disk_bytes={"/usr/local": 1000, SCRATCH: 500},
    min_builder_disk_bytes={SCRATCH: 2000},
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"


def node(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A healthy node in the form of node_facts, with some sections replaced."""
    return {
        "hostname": f"node{number}",
        "fqdn": f"node{number}",
        "distribution": {"id": "debian", "version_id": "12", "family": "Debian", "major": "12"},
        "python": {"version": "3.11.2"},
        "platform": "debian-12-x86_64-glibc2.36-py3.11",
        "cores": 4,
        "gpus": [],
        "disk": [{"path": "/usr/local", "free_bytes": 5000}, {"path": SCRATCH, "free_bytes": 5000}],
        "interfaces": [
            {"name": "lo", "addresses": [{"address": "127.0.0.1"}]},
            {"name": "eth0", "addresses": [{"address": f"10.0.0.{number}"}]},
        ],
        "routes": [{"destination": "0.0.0.0/0", "interface": "eth0"}],
        "user": {"name": "cluster", "uid": 1000, "sudo": True},
        "ssh": {"host_keys": [f"{KEY}{number}"], "port": 22},
        **changes,
    }


def settings_of(name: str, address: str, **changes: Any) -> rules.Settings:
    return rules.Settings(**{"name": name, "reached_at": address, "resolved": [address], **changes})


def member_of(number: int, **changes: Any) -> dict[str, Any]:
    name = f"node{number}"
    return {**rules.member(settings_of(name, f"10.0.0.{number}"), node(number))[0], **changes}


def checks(problems: list[rules.Problem]) -> list[tuple[str, str]]:
    return [(one.host, one.check) for one in problems]


class TestLookFailure:
    def test_a_known_failure_has_its_line_without_the_words_around_it(self) -> None:
        text = 'Data could not be sent to remote host "x". Make sure this host can be reached over ssh: '
        found = rules.look_failure("n", f"{text}me@x: Permission denied (publickey).")
        assert (found.host, found.check) == ("n", "refused")
        assert found.problem == "it refuses the login (me@x: Permission denied (publickey))"
        assert "authorized_keys" in found.cure

    def test_an_unknown_failure_keeps_its_words(self) -> None:
        found = rules.look_failure("n", "the moon\nis in the wrong phase")
        assert found.check == "error"
        assert "the moon is in the wrong phase" in found.problem


FULL = [{"path": "/usr/local", "free_bytes": 5000}, {"path": SCRATCH, "free_bytes": 1000}]


class TestNode:
    @pytest.mark.parametrize(
        ("changes", "builder", "check"),
        [
            ({}, True, ""),
            *(
                ({"distribution": {"id": name, "version_id": release, "family": family}}, False, check)
                for name, release, family, check in (
                    ("debian", "11", "Debian", "distribution"),
                    ("ubuntu", "22.04", "Debian", ""),
                    ("ubuntu", "22.10", "Debian", "distribution"),
                    ("ubuntu", "22.04", "Linux", "distribution"),  # no recipe has the names of its packages
                    ("rocky", "9.4", "RedHat", ""),
                    ("rocky", "90", "RedHat", "distribution"),
                    ("arch", "", "Linux", "distribution"),
                )
            ),
            ({"tools": {}}, False, ""),
            ({"tools": {"ssh": True}}, False, ""),
            ({"tools": {"ssh": False}}, False, "ssh"),
            ({"python": {"version": "3.9.2"}}, False, ""),
            ({"python": {"version": "3.10.0"}}, False, ""),
            ({"python": {"version": "3.8.19"}}, False, "python"),
            ({"disk": FULL}, False, ""),
            ({"disk": FULL}, True, "disk"),
            ({"ssh": {"host_keys": [], "port": 22}}, False, "host_key"),
            ({"job_user": None}, False, ""),
            ({"job_user": {"name": "mpi", "uid": -1, "shell": ""}}, False, ""),
            ({"job_user": {"name": "mpi", "uid": 1001, "shell": "/bin/bash"}}, False, ""),
        ],
    )
    def test_what_a_node_lacks_is_a_problem(self, changes: dict[str, Any], builder: bool, check: str) -> None:
        found = rules.node_problems("n", node(**changes), LIMITS, builder=builder)
        assert checks(found) == ([("n", check)] if check else [])

    @pytest.mark.parametrize("captured", ["debian11", "debian12", "debian-testing", "rocky9", "leap15"])
    def test_the_role_supports_releases_as_they_name_themselves(self, captured: str) -> None:
        role = yaml.safe_load((content.root() / "roles/preflight/defaults/main.yml").read_text(encoding="utf-8"))
        limits = dataclasses.replace(LIMITS, supported=role["preflight_supported"])
        text = (DATA / "node_probe" / f"os-release.{captured}.txt").read_text(encoding="utf-8")
        facts = node(distribution=machine.read_os_release(text))
        assert rules.node_problems("n", facts, limits, builder=False) == []

    @pytest.mark.parametrize(
        ("account", "says", "cure"),
        [
            ({"uid": 0, "shell": "/bin/sh"}, "user mpi has the uid 0", "cluster_user"),
            ({"uid": 33, "shell": "/usr/sbin/nologin"}, "has the shell /usr/sbin/nologin", "cluster_user"),
            ({"home": "/people/mpi", "has_home": False}, "the home /people/mpi of user mpi is missing", "su - mpi -c"),
            (
                {"home": "/nfs/mpi", "has_home": False, "home_answers": False},
                "the home /nfs/mpi of user mpi is on a file system that does not answer",
                "mend its file server",
            ),
        ],
    )
    def test_an_account_that_is_not_fit_for_jobs_is_refused(
        self, account: dict[str, Any], says: str, cure: str
    ) -> None:
        fit = {"name": "mpi", "home": "/", "sudo": False, "uid": 1001, "shell": "/bin/bash"}
        (found,) = rules.node_problems("n1", node(job_user={**fit, **account}), LIMITS, builder=False)
        assert found.check == "cluster_user"
        assert says in found.problem
        assert cure in found.cure

    @pytest.mark.parametrize("sudo", [None, False])
    def test_tasks_that_do_not_run_as_root_are_named_with_their_user(self, sudo: bool | None) -> None:
        user = {"name": "user1", "uid": 1001, "sudo": sudo}
        (found,) = rules.node_problems("n", node(user=user), LIMITS, builder=False)
        assert found.check == "sudo"
        assert "user1" in found.problem
        assert "ansible_become" in found.cure

    def test_a_full_disk_is_named_with_both_figures(self) -> None:
        limits = rules.Limits(supported={"debian": ["12"]}, min_disk_bytes={"/usr/local": 4 * 1024**3})
        disk = [{"path": "/usr/local", "free_bytes": 1024**3}]
        (found,) = rules.node_problems("n", node(disk=disk), limits, builder=False)
        assert "/usr/local has 1.0 GiB free, 4.0 GiB are needed" in found.problem


class TestBuilders:
    def test_the_first_of_each_platform(self) -> None:
        assert rules.builders({"a": "p1", "b": "p1", "c": "p2"}, []) == {"a", "c"}

    def test_a_choice_wins(self) -> None:
        assert rules.builders({"a": "p1", "b": "p1"}, ["b"]) == {"b"}


class TestMember:
    def test_what_the_others_see(self) -> None:
        settings = rules.Settings(
            name="n1", reached_at="10.0.0.1", resolved=["10.0.0.1"], cluster_aliases=["ib1"], slots=2
        )
        entry, problems = rules.member(settings, node(fqdn="node1.example.org", ssh={"host_keys": [KEY], "port": 2222}))
        assert problems == []
        assert entry == {
            "name": "n1",
            "address": "10.0.0.1",
            "addresses": ["10.0.0.1"],
            "port": 2222,
            "host_keys": [KEY],
            "aliases": ["ib1"],
            "platform": "debian-12-x86_64-glibc2.36-py3.11",
            "slots": 2,
            "provides": [],
            "gpus": 0,
            "idle_gpus": "",
            "cuda": {"driver_major": 0, "driver_version": "", "toolkit_version": ""},
            "pmix": {},
        }

    def test_what_a_build_could_rely_on(self) -> None:
        found = rules.provides(node(cuda={"toolkit_version": "12.4", "libcuda": True}, tools={"gdrcopy": True}))
        assert found == ["cuda_toolkit", "libcuda", "gdrcopy"]

    def test_rdma_counts_where_ucx_has_a_transport_for_it(self) -> None:
        mlx5, efa = {"name": "mlx5_0", "driver": "mlx5_core"}, {"name": "efa_0", "driver": "efa"}
        assert rules.provides(node(rdma=[mlx5])) == rules.provides(node(rdma=[efa, mlx5])) == ["rdma"]
        assert rules.provides(node(rdma=[efa])) == []
        assert rules.provides(node(cuda={"toolkit_version": "", "libcuda": True})) == ["libcuda"]

    def test_slots_come_from_gpus_and_then_from_cores(self) -> None:
        settings = settings_of("n1", "10.0.0.1")
        assert rules.member(settings, node())[0]["slots"] == 4
        assert rules.member(settings, node(gpus=[{"name": "H", "driver": "nvidia"}] * 8))[0]["slots"] == 8

    @pytest.mark.parametrize(
        ("given", "hostname", "fqdn", "aliases"),
        [
            ({}, "n1", "localhost.localdomain", []),
            ({"name": "node1.example.org", "reached_at": "a.lan"}, "node1", "node1", ["a.lan", "node1"]),
            ({"name": "node1.example.org", "reached_at": "a.lan"}, "a", "b", ["a.lan", "a"]),
            ({"cluster_aliases": ["a b", "*"]}, "n1", "n1", []),  # no host names
            ({"cluster_aliases": ["io", "IO"]}, "N1", "N1", ["io"]),
            ({"name": "n1.lan"}, "N1", "N1.site", ["N1"]),
            ({"reached_at": "n1.lan", "resolved": ["192.0.2.9", "10.0.0.1"]}, "n1", "n1", ["n1.lan"]),
        ],
    )
    def test_its_names_in_the_inventory_are_aliases(
        self, given: dict[str, Any], hostname: str, fqdn: str, aliases: list[str]
    ) -> None:
        settings = rules.Settings(**{"name": "n1", "reached_at": "10.0.0.1", "resolved": ["10.0.0.1"], **given})
        entry, problems = rules.member(settings, node(hostname=hostname, fqdn=fqdn))
        assert (entry["address"], entry["aliases"], problems) == ("10.0.0.1", aliases, [])

    @pytest.mark.parametrize("called", ["pypi", "node2", "pypi.example.org", "example.org", "", "*"])
    def test_what_a_node_calls_itself_is_no_alias(self, called: str) -> None:
        entry, _ = rules.member(settings_of("n1", "10.0.0.1"), node(hostname=called, fqdn=f"{called}.lan"))
        assert entry["aliases"] == []

    @pytest.mark.parametrize("domain", ["cluster.example.org", ".Cluster.example.org."])
    @pytest.mark.parametrize(
        ("called", "is_taken"),
        [
            ("own.cluster.example.org", True),
            ("cluster.example.org", False),
            ("evilcluster.example.org", False),
            ("pypi.org", False),
        ],
    )
    def test_a_node_may_give_itself_a_name_in_an_allowed_domain(self, called: str, is_taken: bool, domain: str) -> None:
        its = node(hostname="own", fqdn=called)
        found, _ = rules.member(settings_of("n1", "10.0.0.1"), its, domains=[domain, "", "."])
        assert found["aliases"] == ([called] if is_taken else [])

    def test_it_is_reached_at_the_address_that_ansible_takes(self) -> None:
        its = {"ansible_host": "10.0.0.1", "ansible_ssh_host": "10.0.0.2"}
        assert rules.settings("n", its, [])[0].reached_at == "10.0.0.2"

    def test_aliases_of_an_earlier_run_are_held_to_the_same_rule(self) -> None:
        settings = rules.Settings(name="n1", reached_at="n1.lan", cluster_aliases=["io"])
        given = ["io", "pypi", "n1.lan", "n1.cluster.org"]
        assert rules.known_names(settings, given) == ["io", "n1.lan"]
        assert rules.known_names(settings, given, ["cluster.org"]) == ["io", "n1.lan", "n1.cluster.org"]

    @pytest.mark.parametrize(
        ("changes", "telling"),
        [
            ({"reached_at": "203.0.113.7", "resolved": ["203.0.113.7"]}, "203.0.113.7"),
            ({"reached_at": "127.0.0.1", "resolved": ["127.0.0.1"]}, "127.0.0.1"),
            ({"reached_at": "gone.lan", "resolved": []}, "gone.lan"),
            ({"cluster_address": "10.0.0.300"}, "not an IP address"),
            ({"cluster_address": "10.9.9.9"}, "none of its interfaces"),
            ({"cluster_address": "127.0.0.1"}, "127.0.0.1, which every node has itself"),
            ({"cluster_address": "::ffff:127.0.0.1"}, "127.0.0.1, which every node has itself"),
            ({"cluster_address": "fe80::1%eth0"}, "fe80::1%eth0, a link-local address of IPv6, over which Open MPI"),
            ({"cluster_address": "fe80::1"}, "fe80::1, a link-local address of IPv6, over which Open MPI"),
            ({"cluster_address": 'fe80::1%x"\ny'}, "not an IP address"),
            ({"reached_at": "fe80::9", "resolved": ["fe80::9"]}, "fe80::9"),
        ],
    )
    def test_an_address_the_others_cannot_use_is_a_problem(self, changes: dict[str, Any], telling: str) -> None:
        settings = rules.Settings(**{"name": "n1", "reached_at": "10.0.0.1", "resolved": ["10.0.0.1"], **changes})
        _, (found,) = rules.member(settings, node())
        assert found.check == "address"
        assert telling in found.problem
        assert "cluster_address=10.0.0.1" in found.cure  # the default route's interface has it

    def test_ipv6_is_proposed_where_the_way_out_has_nothing_else(self) -> None:
        lasting, link = {"address": "fd00::1"}, {"address": "fe80::1"}
        its = node(
            interfaces=[{"name": "eth0", "addresses": [link, lasting]}],
            routes=[{"destination": "::/0", "interface": "eth0"}],
        )
        settings = rules.Settings(name="n1", reached_at="fd00::9", resolved=["fd00::9"])
        _, (found,) = rules.member(settings, its)
        assert "cluster_address=fd00::1 " in found.cure

    def test_an_address_of_ipv6_has_many_spellings(self) -> None:
        its = node(interfaces=[{"name": "eth0", "addresses": [{"address": "fd00::1"}]}], routes=[])
        settings = rules.Settings(name="n1", reached_at="n1", resolved=["fd00::1"], cluster_address="FD00:0:0::0001")
        entry, problems = rules.member(settings, its)
        assert (entry["address"], problems) == ("fd00::1", [])

    def test_what_a_node_says_of_itself_is_an_address_or_left_out(self) -> None:
        evil = 'fd00::1%x"\nssh-ed25519 AAAA evil'
        here = ["127.0.0.2", "::1", "169.254.1.1", "fe80::1", "224.0.0.9", "0.0.0.0", "::ffff:127.0.0.1"]  # noqa: S104
        said = [*here, evil, "fe80::1%eth0", "10.0.0.1\n", "x", "", "10.0.0.1", "FD00:0::7", "::ffff:10.7.0.1"]
        its = node(interfaces=[{"name": "eth0", "addresses": [{"address": one} for one in said]}])
        settings = settings_of("n1", "10.0.0.1")
        entry, problems = rules.member(settings, its)
        assert (entry["addresses"], problems) == (["10.0.0.1", "fd00::7", "10.7.0.1"], [])

    def test_a_cluster_of_one_may_be_reached_by_loopback(self) -> None:
        settings = rules.Settings(name="localhost", reached_at="localhost", resolved=["127.0.0.1"])
        entry, problems = rules.member(settings, node(), alone=True)
        assert (entry["address"], problems) == ("127.0.0.1", [])


class TestSettings:
    def test_numbers_are_read_and_nonsense_is_a_problem(self) -> None:
        good, none = rules.settings("n", {"slots": "4", "cluster_port": 2222}, ["10.0.0.1"])
        assert (good.slots, good.cluster_port, none) == (4, 2222, [])
        bad, found = rules.settings("n", {"slots": "many", "cluster_port": 99999}, ["10.0.0.1"])
        assert (bad.slots, bad.cluster_port) == (None, None)
        assert [one.variable for one in found] == ["cluster_port", "slots"]


class TestMembership:
    def test_fresh_members_win_known_ones_fill_in_and_strangers_go(self) -> None:
        fresh = [member_of(2, slots=9)]
        known = [member_of(1, user_key="k1"), member_of(2, slots=1), member_of(7)]
        merged, missing = rules.merge_members(fresh, known, ["node1", "node2", "node3"])
        assert [(entry["name"], entry["slots"]) for entry in merged] == [("node1", 4), ("node2", 9)]
        assert merged[0]["user_key"] == "k1"
        assert missing == ["node3"]

    def test_a_visited_node_keeps_its_key_on_record_until_it_tells_its_own(self) -> None:
        known = [member_of(1, user_key="k1", slots=1), member_of(2)]
        merged, _ = rules.merge_members([member_of(1), member_of(2)], known, ["node1", "node2"])
        assert [(entry.get("user_key"), entry["slots"]) for entry in merged] == [("k1", 4), (None, 4)]

    @pytest.mark.parametrize(
        ("names", "changes", "visited", "told", "other"),
        [
            ("node1 node2", {}, "node1 node2", "", ""),
            ("debian debian node3", {}, "node1 node2 node3", "node1:hostname node2:hostname", "node2"),
            ("node2 node1", {}, "node1 node2", "node1:hostname node2:hostname", ""),
            ("NODE1 x X", {}, "node1 node2 node3", "node2:hostname node3:hostname", "node3"),
            ("NODE2 b", {}, "node1 node2", "node1:hostname", ""),
            ("- node2", {"address": "10.0.0.9"}, "node2", "node2:address", "node1"),  # node1 is of an earlier run
            (
                "node1 node2 node3",
                {"host_keys": ["ssh-ed25519 AAAA", "ssh-rsa BBBB"]},
                "node1 node2 node3",
                "node1:host_key node2:host_key node3:host_key",
                "node2, node3",
            ),
        ],
        ids=[
            "healthy",
            "equal-names",
            "swapped-names",
            "equal-but-for-case",
            "another-but-for-case",
            "equal-addresses",
            "clones",
        ],
    )
    def test_members_that_cannot_be_told_apart(
        self, names: str, changes: dict[str, Any], visited: str, told: str, other: str
    ) -> None:
        called = {f"node{number}": name for number, name in enumerate(names.split(), start=1) if name != "-"}
        members = [member_of(number, **changes) for number, _ in enumerate(names.split(), start=1)]
        found = rules.membership_problems(members, called, visited.split())
        assert [f"{one.host}:{one.check}" for one in found] == told.split()
        assert not other or other in found[0].problem

    def test_one_name_for_two_members(self) -> None:
        members = [
            member_of(1, aliases=["io", "a", "A"]),
            member_of(2, aliases=["IO"]),
            member_of(3, aliases=["node1"]),
        ]
        names = {f"node{i}": f"node{i}" for i in (1, 2, 3)}
        found = rules.membership_problems(members, names, ["node2", "node3"])
        assert [(one.host, one.problem) for one in found] == [
            ("node3", "its name node1 is also that of node1"),
            ("node2", "its name io is also that of node1"),
        ]

    def test_shared_host_keys_may_be_wanted(self) -> None:
        members = [member_of(i, host_keys=["k"]) for i in (1, 2)]
        assert rules.membership_problems(members, {}, ["node1", "node2"], require_unique_host_keys=False) == []


class TestClaims:
    """Addresses that a node says it has are its own claim; what the inventory gives another node is not its own."""

    def refused(
        self, *claims: str, members: list[dict[str, Any]] | None = None, others: list[rules.Settings] | None = None
    ) -> list[rules.Problem]:
        """Problems of node3, which is reached at 10.0.0.3 and claims more addresses."""
        liar = member_of(3, addresses=["10.0.0.3", *claims])
        everybody = [member_of(1), member_of(2), liar] if members is None else [*members, liar]
        listed = [settings_of("node3", "10.0.0.3"), *(others or [])]
        return rules.claim_problems(everybody, listed, ["node3"])

    @pytest.mark.parametrize("claim", ["10.0.0.1", "::ffff:10.0.0.1"])
    def test_the_address_of_another_node_is_refused_by_name(self, claim: str) -> None:
        said = node(3, interfaces=[{"name": "eth0", "addresses": [{"address": "10.0.0.3"}, {"address": claim}]}])
        liar, _ = rules.member(settings_of("node3", "10.0.0.3"), said)
        (found,) = rules.claim_problems([member_of(1), liar], [], ["node3"])
        assert (found.host, found.check) == ("node3", "address")
        assert found.problem == "it says that it has 10.0.0.1, which is the address of node1"

    def test_a_node_that_the_run_leaves_out_counts_with_its_record(self) -> None:
        (found,) = self.refused("10.0.0.8", members=[member_of(8)])
        assert "node8" in found.problem

    @pytest.mark.parametrize(
        "other",
        [
            settings_of("nas", "10.0.0.77"),
            settings_of("nas", "nas.lan", resolved=[], cluster_address="10.0.0.77"),
            settings_of("nas", "203.0.113.9", cluster_address="10.0.0.77"),
        ],
    )
    def test_what_the_inventory_gives_another_host_is_refused(self, other: rules.Settings) -> None:
        (found,) = self.refused("10.0.0.77", others=[other])
        assert "10.0.0.77, which is the address of nas" in found.problem

    def test_a_second_address_by_which_another_node_is_reached_is_refused(self) -> None:
        victim = member_of(1, addresses=["10.0.0.1", "fd00::1"])
        reached = settings_of("node1", "node1.lan", resolved=["10.0.0.1", "fd00::1", "192.0.2.9"])
        (found,) = self.refused("fd00::1", members=[victim], others=[reached])
        assert "fd00::1" in found.problem
        assert self.refused("192.0.2.9", members=[victim], others=[reached]) == [], "node1 does not have it"

    def test_addresses_that_many_nodes_have_are_no_problem(self) -> None:
        members = [member_of(i, addresses=[f"10.0.0.{i}", "172.17.0.1", "10.0.0.100", "10.0.2.15"]) for i in (1, 2)]
        assert self.refused("172.17.0.1", "10.0.0.100", "10.0.2.15", members=members) == []

    def test_a_head_node_may_have_the_address_at_which_the_others_are_reached(self) -> None:
        """Its public address forwards one port to each of them, and they have a cluster_address."""
        inside = settings_of("node1", "203.0.113.5", cluster_address="10.0.0.1")
        assert self.refused("203.0.113.5", members=[member_of(1)], others=[inside]) == []

    def test_one_machine_under_two_names_may_have_its_own_address(self) -> None:
        assert self.refused(others=[settings_of("login", "10.0.0.3")]) == []

    def test_only_visited_nodes_are_reported(self) -> None:
        liar = member_of(3, addresses=["10.0.0.3", "10.0.0.1"])
        assert rules.claim_problems([member_of(1), liar], [], ["node1"]) == []

    def test_an_address_that_nodes_share_is_told_where_it_could_reach_another_machine(self) -> None:
        def its(number: int) -> dict[str, Any]:
            def link(name: str, kind: str, *addresses: str) -> dict[str, Any]:
                return {"name": name, "kind": kind, "addresses": [{"address": one} for one in addresses]}

            return node(
                number,
                interfaces=[
                    link("eth0", "physical", f"10.0.0.{number}", "10.0.0.100", "fe80::1"),
                    link("docker0", "bridge", "172.17.0.1"),
                    link("kube-ipvs0", "dummy", "10.96.0.1"),
                    link("lo", "loopback", "127.0.0.1"),
                ],
            )

        nodes = {f"node{number}": its(number) for number in (1, 2, 3)}
        (said,) = rules.shared_address_warnings(nodes, [member_of(i) for i in (1, 2, 3)])
        assert said.startswith("node1, node2, node3 have the same address 10.0.0.100")
        assert rules.shared_address_warnings({"node1": its(1)}, [member_of(1)]) == []


def test_cards_with_the_same_address_or_without_a_driver_are_told() -> None:
    links = [
        {"name": name, "kind": "physical", "addresses": [{"address": "10.0.0.1", "prefix": 24}]}
        for name in ("a0", "b0")
    ]
    assert rules.card_warnings({"node1": node(interfaces=links), "node2": node(driverless_cards=["0000:5e:00.0"])}) == [
        "node1: a0 and b0 have the same address 10.0.0.1; give each card an address of its own.",
        (
            "node2: the RDMA card 0000:5e:00.0 has no driver, so jobs cannot use it; run 'modprobe mlx5_core' and"
            " 'modprobe mlx5_ib', and look in the kernel's log."
        ),
    ]
    assert rules.card_warnings({"node1": node()}) == []


def test_nodes_whose_cards_lack_the_same_share_one_warning() -> None:
    idle = {f"node{number}": node(driverless_cards=["0000:5e:00.0", "0000:af:00.0"]) for number in range(1, 13)}
    (said,) = rules.card_warnings(idle)
    assert said.startswith("node1, node2, node3, node4, node5, node6, node7, node8 and 4 more: the RDMA cards ")
    assert "cards 0000:5e:00.0, 0000:af:00.0 have no driver, so jobs cannot use them; run" in said


def at(offset_s: float, width_s: float = 0.4) -> rules.Clock:
    """A clock that is that far ahead of the controller's, looked at by a task of that length."""
    started = 1000.0
    return rules.clock(started, started + width_s / 2 + offset_s, started + width_s)


class TestClocks:
    def test_bounds_hold_the_truth(self) -> None:
        its = at(3.0)
        assert its.low_s <= 3.0 <= its.high_s

    @pytest.mark.parametrize(
        ("clocks", "host", "words"),
        [
            ({"a": at(0.0), "b": at(4.0), "c": at(1.0)}, "", ""),
            ({"a": at(-3600.0), "b": at(-3601.0)}, "", ""),  # the controller is wrong
            ({"a": at(0.0), "b": at(9.0)}, "b", "9.0 s ahead"),
            ({"a": at(0.0), "b": at(-9.0)}, "b", "9.0 s behind"),
            ({"a": at(0.1), "b": at(-7200.0), "c": at(0.0), "d": at(0.2)}, "b", "2.0 hours behind"),
            ({"a": at(0.0), "b": at(8.0, width_s=20.0)}, "", ""),  # a slow look proves nothing
            ({"a": at(1000.0)}, "", ""),
            ({"a": at(4.9, 0.0), "b": at(-0.2, 0.0), "c": at(0.0)}, "a", "5.1 s ahead of that of b"),
        ],
        ids=["agree", "controller", "ahead", "behind", "odd-one", "slow-look", "alone", "within-the-limit"],
    )
    def test_the_clock_that_differs_is_named(self, clocks: dict[str, rules.Clock], host: str, words: str) -> None:
        found = rules.clock_problems(clocks, 5)
        assert [one.host for one in found] == ([host] if host else [])
        assert all(words in one.problem for one in found)

    def test_a_node_that_agrees_with_the_controller_is_not_named_alone(self) -> None:
        """Two nodes that lie in the same way are as many votes as the third and the controller; three are more."""
        lying = {"a": at(90.0), "b": at(90.0)}
        assert [one.host for one in rules.clock_problems({**lying, "c": at(0.0)}, 5)] == ["a", "b", "c"]
        found = rules.clock_problems({**lying, "c": at(90.1), "d": at(0.0)}, 5)
        assert {one.host for one in found} > {"d"}

    def test_two_far_apart_on_both_sides_of_the_middle_name_each_other(self) -> None:
        found = rules.clock_problems({"a": at(3.5), "b": at(-3.5), "c": at(0.0)}, 5)
        assert checks(found) == [("a", "clock"), ("b", "clock")]
        assert "that of b" in found[0].problem


SPECS: dict[str, dict[str, Any]] = {
    "openmpi": {
        "openmpi_version": {"type": "str", "default": "5.0.7"},
        "openmpi_jobs": {"type": "int", "default": 0},
        "openmpi_family": {"type": "str", "choices": ["4", "5"], "default": "5"},
        "openmpi_options": {"type": "list", "elements": "str", "default": []},
        "openmpi_extra": {"type": "dict"},
        "openmpi_token": {"type": "int", "no_log": True},
    },
    "python": {"python_x": {"type": "str"}},
    "python_env": {"python_env_wheels": {"type": "list", "elements": "str", "default": []}},
}


SPECS_AS_SHIPPED: dict[str, dict[str, Any]] = {
    path.parents[1].name: yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    for path in (content.root() / "roles").glob("*/meta/argument_specs.yml")
}


class TestVariables:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("openmpi_version", "5.0.7"),
            ("openmpi_version", 5),
            ("openmpi_jobs", "8"),
            ("openmpi_options", ["--a"]),
            ("openmpi_extra", None),
            ("openmpi_extra", {}),
            ("__openmpi_thing", 1),
            ("ansible_user", "x"),
            ("openmpiversion", "not in the namespace"),
            ("preflight_node", {}),
            ("python_env_wheels", []),
        ],
    )
    def test_what_is_right_or_not_ours(self, name: str, value: object) -> None:
        assert rules.VariableRules(SPECS).problems("n", name, value) == []

    @pytest.mark.parametrize(
        ("name", "value", "telling"),
        [
            ("openmpi_jobs", "many", "'many', which is not of type int"),
            ("openmpi_options", {"a": 1}, "which is not of type list"),
            ("openmpi_family", "6", "it may be 4, 5"),
            ("openmpi_version", 4.1, "a number loses its last zeros"),
            ("openmpi_version", None, "no value"),
            ("python_env_wheel", [], "not a variable of role python_env"),
        ],
    )
    def test_what_is_wrong(self, name: str, value: object, telling: str) -> None:
        (problem,) = rules.VariableRules(SPECS).problems("n", name, value)
        assert telling in problem.problem
        assert problem.variable == name

    def test_what_the_roles_set_is_no_variable_of_the_user(self) -> None:
        tasks = [path.read_text(encoding="utf-8") for path in (content.root() / "roles").glob("*/tasks/*.yml")]
        names = {name for text in tasks for name in re.findall(r"^\s+register: ([a-z]\w*)$", text, re.MULTILINE)}
        facts = re.compile(r"^( +)ansible\.builtin\.set_fact:\n((?:\1  .*\n)+)", re.MULTILINE)
        set_there = [block for text in tasks for _, block in facts.findall(text)]
        names |= {name for block in set_there for name in re.findall(r"^ +([a-z]\w*):", block, re.MULTILINE)}
        assert {"preflight_members", "preflight_node"} <= names
        judge = rules.VariableRules(SPECS_AS_SHIPPED)
        assert [problem for name in sorted(names) for problem in judge.problems("n", name, {})] == []
        assert judge.warnings() == []

    @pytest.mark.parametrize("folder", ["cache_dir", "work_dir", "log_dir", "controller_log_dir"])
    @pytest.mark.parametrize("role", ["horovod", "mpi4py", "nccl", "openmpi", "python_env", "ucx"])
    def test_a_folder_that_each_role_had_is_refused_with_the_name_it_has_now(self, role: str, folder: str) -> None:
        name, now = f"{role}_{folder}", f"preflight_{folder}"
        judge = rules.VariableRules(SPECS_AS_SHIPPED)
        (found,) = judge.problems("n", name, "/srv/x")
        assert (found.check, found.variable) == ("variable", name)
        assert found.problem == f"{name} is no longer a variable of role {role}"
        assert found.cure == f"set {now}, which all roles of the software share, and remove {name}"
        assert judge.warnings() == []
        assert judge.problems("n", now, "/srv/x") == []
        assert rules.VariableRules(SPECS_AS_SHIPPED, [name]).problems("n", name, "/srv/x") == []

    def test_the_nearest_right_name_is_told(self) -> None:
        (found,) = rules.VariableRules(SPECS).problems("n", "openmpi_verison", "5.0.7")
        assert "did you mean openmpi_version?" in found.cure

    @pytest.mark.parametrize("name", ["openmpi_label", "openmpi_by_rack", "python_env_stage"])
    def test_a_variable_of_other_software_is_told_and_is_no_problem(self, name: str) -> None:
        judge = rules.VariableRules(SPECS)
        assert [judge.problems(host, name, 1) for host in ("one", "two")] == [[], []]
        (warning,) = judge.warnings()
        assert warning.startswith(f"{name} is a variable that the roles of clusterctl do not have")
        assert "preflight_ignored_variables" in warning
        quiet = rules.VariableRules(SPECS, [name])
        assert quiet.problems("one", name, 1) == []
        assert quiet.warnings() == []

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("environment_paths", "environment_path"),
            ("environment_variable", "environment_variables"),
            ("hosts_domains", "hosts_domain"),
            ("hosts_member", "hosts_members"),
            ("fabric_interface", "fabric_interfaces"),
            ("preflight_max_clock_skew", "preflight_max_clock_skew_s"),
        ],
    )
    def test_a_near_miss_of_a_name_that_others_use_is_a_warning(self, name: str, near: str) -> None:
        judge = rules.VariableRules(SPECS_AS_SHIPPED)
        assert [judge.problems(host, name, ["x"]) for host in ("one", "two")] == [[], []]
        (warning,) = judge.warnings()
        assert warning.startswith(f"{name} is not a variable of role {name.partition('_')[0]}, and stays unused there;")
        assert f"did you mean {near}?" in warning
        quiet = rules.VariableRules(SPECS_AS_SHIPPED, [name])
        assert quiet.problems("one", name, ["x"]) == []
        assert quiet.warnings() == []

    def test_a_variable_of_another_role_with_our_name_and_another_type_is_one_sentence_with_both_cures(self) -> None:
        given = [{"name": "PATH", "value": "/opt/bin"}]
        (found,) = rules.VariableRules(SPECS_AS_SHIPPED).problems("n", "environment_variables", given)
        assert found.problem.endswith("which is not of type dict")
        assert found.cure.startswith("correct environment_variables where it is set")
        assert "if it belongs to other software, give clusterctl its own value with -e" in found.cure
        (ours,) = rules.VariableRules(SPECS).problems("n", "openmpi_jobs", "many")
        assert "other software" not in ours.cure

    def test_ones_own_variables_can_be_named(self) -> None:
        assert rules.VariableRules(SPECS, ["openmpi_mine"]).problems("n", "openmpi_mine", 1) == []

    def test_a_secret_is_not_shown(self) -> None:
        (found,) = rules.VariableRules(SPECS).problems("n", "openmpi_token", "hunter2")
        assert "hunter2" not in found.problem + found.cure

    def test_each_host_is_told_though_the_value_is_judged_once(self) -> None:
        judge = rules.VariableRules(SPECS)
        found = [one for i in range(3) for one in judge.problems(f"n{i}", "openmpi_jobs", "many")]
        assert [one.host for one in found] == ["n0", "n1", "n2"]
        assert len({one.problem for one in found}) == 1
        assert judge.judged == 1


class TestKinds:
    @pytest.mark.parametrize(
        ("check", "kind"),
        [
            ("variable", "configuration"),
            ("disk", "host"),
            ("host_key", "host"),
            ("refused", "unreachable"),
            ("unknown_host_key", "unreachable"),
        ],
    )
    def test_whose_the_cure_is(self, check: str, kind: str) -> None:
        assert rules.Problem("n", check, "p", "c").as_dict()["kind"] == kind


class TestTable:
    def test_equal_problems_fold_and_the_head_counts(self) -> None:
        one = [rules.Problem(f"node{i}", "disk", "full", "empty it") for i in range(1, 4)]
        text = rules.table([*one, rules.Problem("node9", "clock", "late", "set it")], 12)
        assert text.splitlines() == [
            "2 problems on 4 of 12 hosts; nothing has been changed.",
            "node1, node2, node3: full; empty it.",
            "node9: late; set it.",
        ]

    def test_many_names_are_counted(self) -> None:
        assert rules.shortened([str(i) for i in range(20)], 3) == "0, 1, 2 and 17 more"
