"""Any text in any field of a node's record: it is refused, or it stays data on its whole way through the product.

The way is the typed gate, preflight's rules, the lines of files, variables of a later run, the terminal and the page.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import factory
import pytest
import role_plays
from clusterctl.diagnosis.rules import registry
from clusterctl.inventory import ansible_call
from clusterctl.model.facts import NodeFacts
from clusterctl.model.results import load
from clusterctl.provisioning import look
from clusterctl.report import files, page
from clusterctl.support import content
from clusterctl.support.words import visible
from doctor_view import record_of, seen
from hostile import JSON, NASTY, TEXT, shape
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.insert(0, str(content.collections_path()))


from ansible_collections.clusterctl.hpc.plugins.filter.hosts import hosts_lines
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules, mesh_rules, preflight_rules

gate = content.module_util("node_record_gate")

RECORD_OF_RUN = min((factory.DATA / "records").glob("*.json")).read_text(encoding="utf-8")
MARK = "evil-mark"
TEMPLATE = "{{ lookup('pipe', 'touch CANARY') }}"
TOKEN = f"\x1b[K{base64.b64encode(json.dumps({'uuid': MARK}).encode()).decode()}\x1b[20D\x1b[K"
EVIL = (
    TEMPLATE,
    "{% set x = lookup('pipe', 'touch CANARY') %}",
    "{{ query('ansible.builtin.pipe', 'touch CANARY') }}",
    "!!python/object/apply:os.system ['touch CANARY']",
    "!vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  00",
    f"\n{MARK} = /tmp/evil.sh\n",
    f"\r\n# END clusterctl hosts\n{MARK}",
    f'" ssh-ed25519 AAAAC3Nz {MARK}\nssh-ed25519 AAAAC3Nz {MARK}',
    f"fe80::1%x\n{MARK}",
    f'fe80::1%"{MARK}',
    f"eth0\n{MARK}",
    "../../../etc/cron.d/x",
    "/etc/../../x\x00",
    TOKEN,
    f"\u2028{MARK}\x85{MARK}\x0b{MARK}",
    f"\x1b]0;{MARK}\x07\x1b[2J",
    "'; touch CANARY; '",
    "`touch CANARY`$(touch CANARY)",
    "," * 5000,
    "x" * 200_000,
)
PIECES = (*EVIL, *NASTY)
TEXTS = st.lists(st.sampled_from(PIECES) | TEXT, min_size=1, max_size=3).map("".join)
DEEP: Any = json.loads("[" * 200 + "]" * 200)
# What a record is made of by every file and module that the roles write.
AUTHORIZED = re.compile(r'restrict,pty,from="[0-9a-f.:,]*" ssh-ed25519 [A-Za-z0-9+/=]+ clusterctl:node[12]')
KNOWN = re.compile(r"[\[\]A-Za-z0-9.:,_-]+ (?:ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+")
NAMES = re.compile(r"[0-9a-f.:]+(?: [A-Za-z0-9._-]+)+")
SETTING = re.compile(r"(?:[a-z_]+ = |NCCL_[A-Z_]+=)[A-Za-z0-9_.,:/=^-]+")
CLIENT = re.compile(r"#.*|Match localuser mpi originalhost [A-Za-z0-9.:,_-]+| {4}[A-Za-z]+ [A-Za-z0-9./_:~-]+|")
SETTINGS = [preflight_rules.Settings(f"node{at}", f"10.0.0.{at}", [f"10.0.0.{at}"]) for at in (1, 2)]
LIMITS = preflight_rules.Limits(supported={"debian": ["12", "13"]}, min_disk_bytes={}, min_builder_disk_bytes={})
MESH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"


def full_record(name: str) -> dict[str, Any]:
    """A node's record in which also the rare parts have an entry."""
    site = {"prefix": "/opt/pmix", "library": "/opt/pmix/lib/libpmix.so.2", "version": "4.2.1", "headers": "4.2.1"}
    record: dict[str, Any] = record_of(name) | {
        "fqdn": f"{name}.example",
        "problems": ["a part"],
        "fabric": {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.2", "proven": ["node1"]},
        "leftovers": [{"pid": 7, "user": "mpi", "command": "./a", "age_s": 99.0, "why": "its launcher is gone"}],
        "switch_ports": [
            {"interface": "eth0", "above": [], "switch": "s1", "id": "x", "port": "p1", "source": "lldpd"}
        ],
        "limit_settings": {"x": "y"},
    }
    record["pmix"] = {**record.get("pmix", {}), "site": site}
    return record


def places_of_texts(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, (dict, list)):
        for key, its in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_of_texts(its, (*way, key))
    elif isinstance(value, str):
        yield way


RECORD = full_record("node2")
PLACES = sorted(places_of_texts(RECORD), key=str)


def with_text(place: tuple[Any, ...], how: str, said: Any) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    holder: Any = record
    for step in place[:-1]:
        holder = holder[step]
    real = holder[place[-1]]
    holder[place[-1]] = {"behind": f"{real}{said}", "before": f"{said}{real}"}.get(how, said)
    if how == "key" and isinstance(holder, dict):
        holder[str(said)] = real
    return record


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, its in value.items():
            yield from (str(key), *texts_of(its))
    elif isinstance(value, (list, tuple)):
        for its in value:
            yield from texts_of(its)


def assert_one_sentence(error: Exception) -> None:
    assert str(error).isprintable(), ascii(error)
    assert len(str(error)) < 2000


def fits(lines: str, form: re.Pattern[str]) -> bool:
    found = [line for line in lines.split("\n")[:-1] if not form.fullmatch(line)]
    assert not found, found
    return lines.endswith("\n") or not lines


@given(
    st.sampled_from(PLACES),
    st.sampled_from(("instead", "behind", "before", "key")),
    TEXTS | JSON | st.just(DEEP),
)
@example(("pmix", "site", "prefix"), "instead", TEMPLATE)
@example(("interfaces", 0, "addresses", 0, "address"), "instead", f'fe80::1%x" {MARK}\nssh-ed25519 {MARK}')
@example(("interfaces", 0, "name"), "behind", f"\nprte_launch_agent = /tmp/{MARK}")
@example(("fqdn",), "instead", "node1")
def test_a_text_of_a_record_is_refused_or_stays_data(place: tuple[Any, ...], how: str, said: Any) -> None:
    record = with_text(place, how, said)
    try:
        node = gate.passed(record)
    except gate.RecordError as error:
        assert_one_sentence(error)
        return
    for text in texts_of(node):
        assert MARK not in text or text.isprintable(), ascii(text)
        assert not set(text) & set("\x00\x1b\x07\x9b\r\n\u2028\u202e"), ascii(text)
    nodes = {"node1": gate.passed(full_record("node1")), "node2": node}
    members, problems = [], []
    for settings, its in zip(SETTINGS, nodes.values(), strict=True):
        problems += preflight_rules.node_problems(settings.name, its, LIMITS, builder=True)
        entry, against = preflight_rules.member(settings, its, domains=["example"])
        problems += against
        entry |= preflight_rules.for_builds(settings.name, its, LIMITS)
        assert gate.member(entry) == entry  # or the snapshot of the run counts as missing
        members.append(entry)
    names = {name: str(its["hostname"]) for name, its in nodes.items()}
    problems += preflight_rules.membership_problems(members, names, nodes, require_unique_host_keys=True)
    problems += preflight_rules.claim_problems(members, SETTINGS, nodes)
    for problem in problems:
        assert all(text.isprintable() for text in texts_of(problem.as_dict()))
    assert_files_fit(members, nodes)
    facts = NodeFacts.model_validate(node)
    look.state_of(facts)
    view = seen()
    findings = registry.diagnose(dataclasses.replace(view, nodes={**view.nodes, "node2": facts}))
    for finding in findings:
        shown = visible(" ".join(texts_of(dataclasses.asdict(finding) if dataclasses.is_dataclass(finding) else {})))
        assert not set(shown) & set("\x00\x1b\x07\x9b\r\u202e")


def assert_files_fit(members: list[dict[str, Any]], nodes: dict[str, dict[str, Any]]) -> None:
    """Write what the roles write from these members, and match each line."""
    meshed = [{**member, "user_key": MESH_KEY} for member in members]
    try:
        mesh_rules.check_members(meshed)
        assert fits(mesh_rules.authorized_keys(meshed, mesh_rules.Options()), AUTHORIZED)
        assert fits(mesh_rules.known_hosts(meshed), KNOWN)
        assert fits(mesh_rules.client_config(meshed, "mpi", mesh_rules.Options()), CLIENT)
    except mesh_rules.MeshError as error:
        assert_one_sentence(error)
    assert fits(hosts_lines(members), NAMES)
    assert "node1" not in next(line for line in hosts_lines(members).splitlines() if "node2" in line).split()
    try:
        found = fabric_rules.candidates(nodes, [], [], [])
        for network in found.networks:
            for host, its in nodes.items():
                pins = fabric_rules.nccl_pins(host, fabric_rules.rdma(its), [], gid=True)
                for text in fabric_rules.files(network, host, pins).values():
                    assert fits(text, SETTING)
    except fabric_rules.FabricError as error:
        assert_one_sentence(error)


@given(TEXTS)
def test_a_key_of_a_module_is_one_line_or_refused(said: str) -> None:
    members = [{"name": f"node{at}", "address": f"10.0.0.{at}", "port": 22, "host_keys": [MESH_KEY]} for at in (1, 2)]
    for field, value in (
        ("user_key", f"{MESH_KEY}{said}"),
        ("user_key", said),
        ("host_keys", [f"{MESH_KEY}{said}"]),
        ("addresses", [f"10.0.0.2{said}", said]),
        ("aliases", [said]),
        ("address", said),
    ):
        changed = [{**members[0], "user_key": MESH_KEY}, {**members[1], "user_key": MESH_KEY, field: value}]
        try:
            mesh_rules.check_members(changed)
        except mesh_rules.MeshError as error:
            assert_one_sentence(error)
            continue
        assert fits(mesh_rules.authorized_keys(changed, mesh_rules.Options()), AUTHORIZED)
        assert fits(mesh_rules.known_hosts(changed), KNOWN)


@given(TEXTS)
def test_a_text_of_a_node_is_no_part_of_the_page_and_no_word_of_the_terminal(said: str) -> None:
    found = load(RECORD_OF_RUN, "r")
    first = found.checks[0].model_copy(update={"reason": f"{said} node2", "evidence": (said,), "hosts": (said,)})
    hostile = found.model_copy(update={"checks": (first, *found.checks[1:]), "launch_node": said})
    assert shape(page.document(hostile, files.logs(hostile))) == (2, [])
    assert not set(visible(said)) & set("\x00\x07\r\x1b\x9b\u202e\ud800")


def test_no_text_of_a_node_is_a_template_in_a_later_run(tmp_path: Path) -> None:
    """One play over this machine with many texts, in values and in keys, each of which Ansible writes into a file."""
    many = int(os.environ.get("CLUSTERCTL_FUZZ", "10"))
    drawn = random.Random(0 if many == 10 else None)  # noqa: S311 - it draws tests
    canary = tmp_path / "canary"
    said = [
        "".join(drawn.choices(PIECES[:-2], k=drawn.randint(1, 3))).replace("CANARY", str(canary))[:20_000]
        for _ in range(many)
    ]
    said += ["5.10", "012", "0x1f", "1_000", "yes", "null", "~", "", "2026-01-02", ".inf", "<<", "=", "9" * 5000, " 7 "]
    known = [{"name": f"node{at}", "pmix": {"prefix": text}, text: [text]} for at, text in enumerate(said)]
    variables = tmp_path / "variables.yml"
    variables.write_text(ansible_call.data_text({"preflight_known_members": known}), encoding="utf-8")
    play = (
        "- hosts: localhost\n  gather_facts: false\n"
        "  vars: {deep: '{{ preflight_known_members | map(attribute=\"pmix\") | list }}'}\n"
        "  tasks:\n"
        "    - ansible.builtin.set_fact: {again: '{{ deep }}', whole: '{{ preflight_known_members }}'}\n"
        "    - ansible.builtin.copy:\n"
        "        content: '{{ [again, whole] | to_json }}'\n"
        f"        dest: {tmp_path}/written\n        mode: '0600'\n"
        "    - ansible.builtin.debug: {msg: '{{ again }}{{ whole }}'}\n"
    )
    done = role_plays.play(play, tmp_path, "-i", "localhost,", "-c", "local", f"--extra-vars=@{variables}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not canary.exists(), "a text of a node ran on the controller"
    again, whole = json.loads((tmp_path / "written").read_text(encoding="utf-8"))
    plain = json.loads(json.dumps(known).replace("\\ud800", "\\ufffd"))
    assert (again, whole) == ([one["pmix"] for one in plain], plain)


@pytest.fixture(autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
