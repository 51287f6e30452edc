"""What a node's probe and its files may say: it is read, or a failure of that node; every rule of doctor stands it."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
from collections.abc import Callable
from typing import Any

import factory
import node_programs
import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules import registry
from clusterctl.inventory import ansible_inventory
from clusterctl.inventory.ansible_settings import Settings
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host, InventoryOptions, InventorySources
from clusterctl.provisioning import look
from clusterctl.remote import facts, python
from clusterctl.support import content
from clusterctl.support.errors import ConfigError
from doctor_view import NODES, record_of, seen
from hostile import JSON, NASTY, TEXT, altered, changed, written
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(content.collections_path()))


from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact,
    library_closure,
    mesh_rules,
    preflight_rules,
    sshd,
    text_edit,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    gpu,
    libraries,
    machine,
    network,
    parameters,
    reading,
)

DATA = factory.DATA / "node_probe"
HOST = Host("node7", "192.0.2.7")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"
FAILURES = [one["stderr"] for one in json.loads((DATA / "ssh-failures.json").read_bytes())]


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8", errors="replace")


def answered(line: str) -> NodeFacts | Any:
    return facts.read(HOST, python.Ending(0, line.encode("utf-8", "surrogatepass"), ""))


@given(changed(record_of("node1")))
def test_a_record_of_a_node_is_facts_or_a_failure_and_every_rule_stands_it(record: Any) -> None:
    found = answered(written(record))
    if not isinstance(found, NodeFacts):
        assert found.host == "node7"
        assert found.message.startswith("node7 (192.0.2.7 port 22) gave no readable record")
        return
    view = seen()
    view = dataclasses.replace(view, nodes={**view.nodes, "node2": found})
    for finding in registry.diagnose(view):
        assert set(finding.hosts) <= set(NODES)
    registry.notes(view)
    look.state_of(found)
    assert NodeFacts.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_a_number_that_no_record_can_hold_is_a_failure(value: str) -> None:
    """Also in a part that may have any form, such as the inputs of an artifact."""
    record = record_of("node1")
    record["artifacts"][0]["inputs"] = {"a": "a number"}
    found = answered(json.dumps(record, separators=(",", ":")).replace('"a number"', value))
    assert not isinstance(found, NodeFacts)
    assert "gave no readable record" in found.message


@pytest.mark.parametrize("value", ["a text", ["a", "list"], 7])
def test_a_framework_of_another_form_counts_as_unknown(value: Any) -> None:
    record = record_of("node1")
    for one in record["artifacts"]:
        one["inputs"] = {"framework": value}
    found = answered(written(record))
    assert isinstance(found, NodeFacts)
    view = dataclasses.replace(seen(), nodes={"node1": found})
    assert training_stack.of(found).framework == ""
    registry.diagnose(view)


@given(st.binary(max_size=60) | JSON.map(lambda value: written(value).encode()))
def test_an_answer_of_any_bytes_is_a_failure(data: bytes) -> None:
    found = facts.read(HOST, python.Ending(0, data, ""))
    assert "gave no readable record" in found.message


READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "environment": (reading.read_environment_file, "PATH=/usr/bin\nexport A='b' # c\n"),
    "gpu": (gpu.read_gpu_information, "Model: H200\nGPU UUID: GPU-1\n"),
    "cuda header": (gpu.header_cuda_version, "#define CUDA_VERSION 13000\n"),
    "os-release": (machine.read_os_release, text_of("os-release.debian12.txt")),
    "settings": (parameters.read_settings, "# BEGIN clusterctl fabric\nbtl = tcp\n# END clusterctl fabric\nx=1\n"),
    "start-up file": (lambda text: parameters.exports(text, bool), "export A='b c' B=1 # c\n  export A=2\n"),
    "ldd": (library_closure.parse_ldd, "\tlibmpi.so.40 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"),
    "keys": (sshd.keys_of, f"# mine\n{KEY}\n# BEGIN clusterctl ssh_mesh\nx\n# END clusterctl ssh_mesh\n"),
    "block": (sshd.block_of, f"# BEGIN clusterctl ssh_mesh\n{KEY}\n# END clusterctl ssh_mesh\n"),
}
# The section of the probe turns these into a hole in the record, with a sentence.
BY_SECTION: dict[str, tuple[Callable[[str], object], str]] = {
    "routes": (network.read_ipv4_routes, text_of("route.txt")),
    "ipv6 routes": (network.read_ipv6_routes, text_of("ipv6_route.txt")),
}


@pytest.mark.parametrize("name", [*READERS, *BY_SECTION])
@given(data=st.data())
def test_files_of_a_node_are_read(name: str, data: st.DataObject) -> None:
    read, real = {**READERS, **BY_SECTION}[name]
    text = data.draw(altered([real]))
    try:
        read(text)
    except (ValueError, struct.error, OSError, OverflowError):
        assert name in BY_SECTION
    except text_edit.EditError:
        assert name == "keys"


def test_numbers_that_once_stopped_a_section_of_the_probe() -> None:
    assert gpu.header_cuda_version("#define CUDA_VERSION " + "9" * 5000) == ""
    assert gpu.header_cuda_version("#define CUDA_VERSION ²") == ""
    assert gpu.driver_version("NVRM version: NVIDIA ²³.4 580.65.06") == "580.65.06"
    for broken in ("[" * 100_000, f'{{"schema":{artifact.SCHEMA},"files":[["a","f",1e999,"",""]]}}'):
        with pytest.raises(artifact.ArtifactError, match="not readable"):
            artifact.parse_manifest(broken.encode())
    cut = (DATA / "ld.so.cache.new.bin").read_bytes()[:-1]
    assert libraries.read_library_cache(cut[: cut.find(b"glibc-ld.so.cache") + 25], "libc.so.6") == []
    with pytest.raises(GPU_STATE.StateError):
        GPU_STATE.parsed("²" + CSV[0][1:])
    with pytest.raises(GPU_STATE.StateError):
        GPU_STATE.parsed("9" * 5000 + CSV[0][1:])


@given(altered([text_of("nvidia-version.open.txt"), text_of("nvidia-version.proprietary.txt")]))
def test_a_version_of_a_driver_can_be_compared_or_is_unknown(text: str) -> None:
    version = gpu.driver_version(text)
    if version:
        gpu.driver_cuda(version)


@given(
    st.sampled_from(["new", "compat"]), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=30)
)
def test_a_library_cache_of_any_bytes_is_read(kind: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray((DATA / f"ld.so.cache.{kind}.bin").read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    libraries.read_library_cache(bytes(data), "libc.so.6")
    libraries.read_library_cache(bytes(data[: flips[0][0] % len(data)] if flips else data), "libc.so.6")


GPU_STATE = node_programs.load("gpu_state")
CSV = [path.read_text(encoding="utf-8") for path in sorted((factory.DATA / "gpu_state").glob("*.csv"))]


@given(altered(CSV))
def test_what_nvidia_smi_prints_is_the_state_of_gpus_or_one_sentence(text: str) -> None:
    try:
        found = GPU_STATE.parsed(text)
    except GPU_STATE.StateError:
        return
    for one in found:
        json.dumps([value for value in vars(one).values() if isinstance(value, float)], allow_nan=False)


@given(altered(FAILURES))
def test_words_of_a_failed_look_are_a_problem_with_a_cure(text: str) -> None:
    problem = preflight_rules.look_failure("node7", text)
    assert problem.host == "node7"


MANIFEST = {"schema": artifact.SCHEMA, "files": [["lib", "d", 0, "", "0755"], ["lib/a", "f", 3, "00", "0644"]]}


@given(changed(MANIFEST).map(written).map(lambda text: text.encode()) | st.binary(max_size=40))
def test_a_manifest_is_read_or_refused(data: bytes) -> None:
    try:
        entries = artifact.parse_manifest(data)
    except artifact.ArtifactError:
        return
    assert all(isinstance(entry, artifact.Entry) for entry in entries)


MEMBERS = [
    {"name": f"node{at}", "address": f"10.0.0.{at}", "port": 22, "host_keys": [KEY], "aliases": [], "user_key": KEY}
    for at in (1, 2)
]
REMEMBERED = (mesh_rules.authorized_keys(MEMBERS, mesh_rules.Options()) + mesh_rules.known_hosts(MEMBERS)).splitlines()
WORDS = st.sampled_from([*REMEMBERED, "*", "node1", "pypi.org", "10.0.0.9", KEY, "clusterctl:node1", *NASTY]) | TEXT
LINES = st.lists(WORDS, max_size=4).map(" ".join) | st.lists(WORDS, max_size=3).map(",".join)


@given(st.lists(LINES, max_size=8))
def test_what_nodes_remember_brings_no_other_name_and_no_other_line(memory: list[str]) -> None:
    recalled = mesh_rules.recall(memory, {"node1": ["n1"], "node2": []})
    known = mesh_rules.complete(MEMBERS[:1], {}, recalled, ["node1", "node2"])
    assert {member["name"] for member in known} <= {"node1", "node2"}
    for text in (mesh_rules.known_hosts(known), mesh_rules.authorized_keys(known, mesh_rules.Options())):
        for line in text.splitlines():
            words = line.split()
            assert words[0].startswith(("restrict,pty", "node1,", "node2,", "[node1]:", "[node2]:")), line
            assert not {"*", "pypi.org", "[*]:22"} & set(words[0].split(","))


SOURCES = InventorySources(("/inventory.ini",))
VARIABLES = {
    "ansible_host": "10.0.0.1",
    "ansible_port": 22,
    "ansible_user": "me",
    "ansible_become": "yes",
    "ansible_ssh_common_args": "-o A=b",
    "ansible_python_interpreter": "/usr/bin/python3",
    "cluster_user": "mpi",
    "cluster_user_keys": [KEY],
    "slots": 4,
}


@given(TEXT | st.just("node1"), changed(VARIABLES))
def test_a_host_of_an_inventory_is_taken_or_refused_with_a_sentence(name: str, variables: Any) -> None:
    try:
        host = ansible_inventory._host(SOURCES, name, variables, InventoryOptions(), Settings())  # noqa: SLF001 - one host of it
    except ConfigError:
        return
    assert not set(host.name + host.address) & set(" \n\x1b<>$;&|`'\"")
    assert not host.address.startswith("-")
    assert 0 < host.port < 65536
