"""A node with a foreign root answers: it gains nothing on the controller and nothing on another node.

After each run :meth:`rooted.RootedCluster.attacked` looks at the controller, at the other nodes, and at the screen.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from clusterctl.sandbox import Sandbox
from rooted import ATTACKER, FORGED, HONEST, KEY, LAUNCHER, ROOTED, RootedCluster, lie, more, tokens

pytestmark = pytest.mark.cluster

PROVISION = ("provision", "--yes", "--no-validate", "--format", "json")
MEETING = ("--tags", "hosts,ssh_mesh,fabric")
AUTHORIZED = "/home/cluster/.ssh/authorized_keys"
KNOWN = "/etc/ssh/ssh_known_hosts"
SCREEN = f"\x1b[2J\x1b]0;x\x07\r\n{FORGED}: Done: 3 hosts\n{FORGED}\u2028{FORGED}\u202e"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory) -> RootedCluster:
    """Three nodes that know each other, without any software; the third has a foreign root."""
    found = RootedCluster(sandbox("rooted", nodes=3), tmp_path_factory.mktemp("rooted"))
    done, _ = found.provision(*MEETING)
    assert done.returncode == 0, done.stderr + done.stdout
    found.remember()
    return found


def lines(cluster: RootedCluster, path: str) -> dict[str, list[str]]:
    return {node: cluster.on(node, "cat", path).splitlines() for node in HONEST}


ADDRESS = {"family": 6, "address": f'fd00::9%x" {KEY} x\n{KEY} x\n', "prefix": 64, "scope": "global"}
REFUSED = {
    "pmix.site": ("record", "pmix.site", {"prefix": "TEMPLATE", "library": "", "version": "", "headers": ""}),
    "address": ("record", "interfaces.0.addresses.1", ADDRESS),
    "interface": ("record", "interfaces.1.name", f"eth0\n{LAUNCHER}"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_of_another_form_stops_its_node_by_name(cluster: RootedCluster, field: str) -> None:
    of, at, value = REFUSED[field]
    said = json.loads(json.dumps(value).replace("TEMPLATE", cluster.template))
    found = cluster.attacked([lie(of, at, said)], *PROVISION, *MEETING, str(cluster.box.inventory))
    assert found.returncode == 2, found.said
    assert {one["host"] for one in found.record["problems"]} == {ROOTED}
    assert at.partition(".")[0] in json.dumps(found.record["problems"])


def test_texts_of_a_node_are_inert_in_a_whole_run(cluster: RootedCluster) -> None:
    """Templates, tokens, escapes and newlines in each text that may be any; memories of other hosts; forged results."""
    before = lines(cluster, AUTHORIZED), lines(cluster, KNOWN)
    text = f"{cluster.template} {SCREEN}"
    own, other = (cluster.box.node(name).address for name in (ROOTED, "node1"))
    found = cluster.attacked(
        [
            *tokens(changed=True, changes=[FORGED], msg=FORGED, members=[{"name": "node2", "address": own}]),
            *(lie("record", at, text) for at in ("distribution.name", "environment.EDITOR", "python.executable")),
            lie("record", "hostname", "node1"),
            lie("record", "fqdn", "node1"),
            more("record", "problems", [text]),
            lie("record", "limit_settings", {text: text}),
            *(more(one, "warnings", [text]) for one in ("hosts_file", "mesh_key", "file_set", "fabric_listen")),
            *(more(one, "changes", [text]) for one in ("hosts_file", "file_set")),
            *(lie(one, "msg", text) for one in ("hosts_file", "mesh_login")),
            more("any", "told", [text]),
            lie("any", "ansible_facts", {"preflight_members": [], "ansible_python_interpreter": "/root/evil.sh"}),
            lie("any", "members", [{"name": "node2", "address": own}]),
            lie("any", "problems", [{"host": "node2", "subject": FORGED, "problem": FORGED, "cure": ""}]),
            more("mesh_key", "remembered", [f"node1,{other} {KEY}", f'restrict,from="{own}" {KEY} clusterctl:node1']),
            more("mesh_key", "obstacles", [text]),
        ],
        *PROVISION,
        *MEETING,
        str(cluster.box.inventory),
    )
    assert (lines(cluster, AUTHORIZED), lines(cluster, KNOWN)) == before
    for node in HONEST:
        assert found.of(node)["outcome"] in {"ok", "not run"}, found.record
    assert {one["host"] for one in found.record["problems"]} <= {ROOTED}


def test_a_key_of_a_node_is_one_line(cluster: RootedCluster) -> None:
    before = lines(cluster, AUTHORIZED)
    two = more("mesh_key", "public_key", f"\n{KEY} {FORGED}")
    cluster.attacked([two], *PROVISION, "--tags", "ssh_mesh", str(cluster.box.inventory))
    assert lines(cluster, AUTHORIZED) == before


def test_a_nodes_memory_of_another_host_reaches_no_third_node(cluster: RootedCluster) -> None:
    """With a tie of two visited nodes, the first one's memory of the third node's host key once won."""
    before = lines(cluster, KNOWN)["node2"]
    gone = cluster.box.node(ROOTED).address
    memory = [f"{ROOTED},{gone} {KEY}", f'restrict,pty,from="{gone}" {KEY} clusterctl:{ROOTED}']
    words = (*PROVISION, "--tags", "ssh_mesh", "--limit", "node1,node2", str(cluster.box.inventory))
    cluster.on("node1", "tar", "-C", "/", "-cf", "/root/own.tar", KNOWN[1:], AUTHORIZED[1:])
    try:
        cluster.attacked([lie("mesh_key", "remembered", memory)], *words, node="node1")
        assert lines(cluster, KNOWN)["node2"] == before
    finally:
        cluster.on("node1", "tar", "-C", "/", "-xf", "/root/own.tar")


def test_what_a_snapshot_has_of_a_node_is_no_template(cluster: RootedCluster) -> None:
    template = cluster.template
    cluster.remember(idle_gpus=template)
    done, _ = cluster.provision("--tags", "hosts", "--limit", "node1")
    ran = cluster.canary.exists()
    cluster.canary.unlink(missing_ok=True)
    assert not ran, "a text of a snapshot was run as a template"
    assert done.returncode == 0, done.stdout
    assert template not in done.stdout
    cluster.remember()


def test_a_rotation_takes_the_key_of_a_host_from_that_host_alone(cluster: RootedCluster) -> None:
    before = lines(cluster, "/etc/ssh/ssh_host_ed25519_key.pub")
    lies = [*tokens(next_host_key=KEY, host_keys=[KEY], changed=True), lie("any", "members", [{"name": "node2"}])]
    cluster.remember()
    words = ("rotate", "host-keys", str(cluster.box.inventory), "--yes", "--format", "json")
    found = cluster.attacked(lies, *words)
    assert found.returncode == 0, found.said
    after = lines(cluster, "/etc/ssh/ssh_host_ed25519_key.pub")
    known = cluster.box.known_hosts.read_text(encoding="utf-8")
    for node in HONEST:
        assert before[node] != after[node]
        assert after[node][0].split()[1] in known


def test_doctor_shows_texts_of_a_node_as_text(cluster: RootedCluster) -> None:
    text = f"{cluster.template} {SCREEN}"
    lies = [
        more("record", "problems", [text]),
        lie("record", "distribution.name", text),
        lie("record", "environment", {"LD_PRELOAD": text, "OMPI_MCA_btl": text, "NCCL_DEBUG": text, "PATH": text}),
        lie("record", "leftovers", [{"pid": 7, "user": "x", "command": text, "age_s": 9e5, "why": text}]),
        lie("record", "prefix.problem", text),
        {"of": "any", "stderr": text},
        {"of": "any", "stdout": f"{text}\n"},
    ]
    cluster.attacked(lies, "doctor", str(cluster.box.inventory))


def test_an_authority_signs_for_a_node_its_own_names_alone(cluster: RootedCluster) -> None:
    """With certificates, a node that says it is another one, and that its host key is another key."""
    variables = cluster.box.inventory.parent / "group_vars" / "all.yml"
    known = variables.read_text(encoding="utf-8")
    secret = cluster.canary.with_name("passphrase")
    secret.write_text("correct horse\n", encoding="utf-8")
    secret.chmod(0o600)
    variables.write_text(json.dumps({**json.loads(known), "ssh_mesh_trust": "ca"}), encoding="utf-8")
    lies = [
        lie("record", "hostname", "node1"),
        lie("record", "fqdn", "node1"),
        more("mesh_key", "trust.host_keys", [KEY]),
        *tokens(changed=True, changes=[FORGED], certificates={"node2": {"user": FORGED, "host": FORGED}}),
    ]
    words = (*PROVISION, "--tags", "ssh_mesh", "--ca-passphrase-file", str(secret), str(cluster.box.inventory))
    try:
        cluster.attacked(lies, *words)
        done, _ = cluster.provision("--tags", "ssh_mesh", "--ca-passphrase-file", str(secret))
        assert done.returncode == 0, done.stderr + done.stdout
        show = "for one in /etc/ssh/*-cert.pub /home/cluster/.ssh/*-cert.pub; do ssh-keygen -L -f $one; done"
        signed = cluster.on(ROOTED, "sh", "-c", show)
        assert ROOTED in signed
        assert not {"node1", "node2"} & set(signed.replace(",", " ").split())
    finally:
        variables.write_text(known, encoding="utf-8")


def test_a_removal_listens_to_no_lie_of_a_node_that_stays(cluster: RootedCluster) -> None:
    cluster.remember()
    lies = [
        *tokens(changed=True, members=[{"name": "node2", "address": cluster.box.node(ROOTED).address}]),
        lie("any", "members", []),
        more("mesh_key", "remembered", [f"node2,{cluster.box.node('node2').address} {KEY}"]),
    ]
    words = ("remove", str(cluster.box.inventory), "node2", "--yes", "--format", "json")
    cluster.attacked(lies, *words)
    assert "clusterctl:node2" not in "".join(lines(cluster, AUTHORIZED)["node1"])


def test_an_uninstall_removes_on_each_node_what_that_node_has(cluster: RootedCluster) -> None:
    for node in HONEST:
        cluster.on(node, "sh", "-c", "echo root > /etc/canary")
    lies = [
        *tokens(changed=True, changes=[FORGED], paths=["/etc/canary"]),
        *(more("uninstall", at, ["/etc/canary", f"/etc/canary\n{FORGED}"]) for at in ("paths", "changes", "trees")),
        lie("uninstall", "host", "node1"),
        more("uninstall", "problems", [{"host": "node1", "subject": FORGED, "problem": FORGED, "cure": SCREEN}]),
    ]
    words = ("uninstall", "--yes", "--format", "json", str(cluster.box.inventory))
    cluster.attacked(lies, *words)
    for node in HONEST:
        assert cluster.on(node, "cat", "/etc/canary") == "root"
    assert ATTACKER not in "".join(lines(cluster, AUTHORIZED)["node1"])
