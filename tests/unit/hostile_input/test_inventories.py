"""Any text as an inventory, a limit or an extra variable ends in hosts or in one sentence, never in a traceback."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from clusterctl.inventory import ansible_call, ansible_inventory
from clusterctl.model import nodeset
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.support.errors import ConfigError, TooManyHostsError
from hostile import TEXT, altered
from hypothesis import example, given, settings
from hypothesis import strategies as st

INI = """\
# a comment
[nodes]
node[1:3] ansible_port=2222 slots=4
node4 ansible_host=192.0.2.4 ansible_user="me" # another
[gpu:children]
nodes
[nodes:vars]
ansible_become=true
ansible_ssh_common_args='-o A=b'
cluster_user={{ who }}
who=mpi
"""
YAML = """\
all:
  children:
    nodes:
      hosts:
        node[1:2]: {slots: 2}
        node3:
          ansible_host: 192.0.2.3
          ansible_port: 22
      vars: &shared
        ansible_user: me
        cluster_user: "{{ who }}"
        who: mpi
    gpu: {children: {nodes: }}
"""
LONGEST_SENTENCE = 6000  # a text of 5000 characters may be named


def check_sentence(refused: ConfigError) -> None:
    text = str(refused)
    assert 0 < len(text) < LONGEST_SENTENCE, text
    assert "\n" not in text, text
    assert "Traceback" not in text, text


# Each example starts Ansible, so a tenth of the examples of other tests is drawn.
@settings(max_examples=max(10, settings.default.max_examples // 10))
@given(
    altered([INI, YAML]) | st.text(max_size=60),
    st.sampled_from(("ini", "yml")),
    st.sampled_from((None, "all", "node[1-2]", "nodes[0]", "gpu:!node1")),
)
def test_any_text_as_an_inventory_is_hosts_or_one_sentence(text: str, suffix: str, limit: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"lab.{suffix}")
        place.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            found = ansible_inventory.load(place, InventoryOptions(limit=limit))
        except ConfigError as refused:
            check_sentence(refused)
            return
    assert found.selected
    assert {*found.selected} <= {host.name for host in found.hosts}


@pytest.mark.parametrize("text", [INI, YAML])
def test_the_texts_from_which_the_drawing_begins_are_inventories(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "lab.yml" if text == YAML else "lab.ini")
        place.write_text(text, encoding="utf-8")
        found = ansible_inventory.load(place, InventoryOptions())
    assert found.selected[:3] == ("node1", "node2", "node3")
    assert found.hosts[0].variables["cluster_user"] == "mpi"


@given(TEXT | altered(["who=mpi slots=4", '{"who": "mpi"}', "[1]", "@file", "who='a b' x={{ y }}"]))
def test_any_text_as_an_extra_variable_is_taken_or_refused_with_one_sentence(text: str) -> None:
    argument = os.fsdecode(text.encode("utf-8", "surrogatepass"))  # as a command line passes it
    with tempfile.TemporaryDirectory() as folder:
        try:
            (option,) = ansible_call.in_folder([argument], Path(folder))
        except ConfigError as refused:
            check_sentence(refused)
            return
    assert option.startswith("--extra-vars=@")


@given(TEXT | altered(["all:!node[1-3]", "nodes[0:2],&gpu", "~node.*", "node[001-003]x[1-2]"]), st.booleans())
@example(text="9" * 5000 + "x[1-3]", known=False)
@example(text="node[1-999999999]", known=False)
def test_any_text_as_a_limit_or_a_list_of_hosts_is_a_pattern_for_ansible(text: str, known: bool) -> None:
    listed = InventorySources((text,))
    assert listed.shown
    assert all("," not in str(path) for path in listed.paths)
    try:
        assert isinstance(nodeset.ansible_pattern(text, ["nodes", "node"] if known else []), str)
        assert nodeset.host_list(text)
    except TooManyHostsError as refused:
        check_sentence(refused)
