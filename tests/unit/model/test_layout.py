"""Where the software lies: all of it below one prefix, which hosts take from the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.launch import submission_text
from clusterctl.launch.submission import Submission
from clusterctl.launch.submission_text import KINDS
from clusterctl.model.hosts import Host, InventoryOptions
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = Layout("/opt/cluster")


def test_everything_lies_below_the_prefix() -> None:
    assert DEFAULT_LAYOUT.mpirun == "/usr/local/openmpi/bin/mpirun"
    assert DEFAULT_LAYOUT.programs == "/usr/local/libexec/clusterctl"
    names = [name for name in dir(Layout) if isinstance(getattr(Layout, name), property)]
    for name in names:
        assert str(getattr(ELSEWHERE, name)) == str(getattr(DEFAULT_LAYOUT, name)).replace("/usr/local", "/opt/cluster")


def test_a_host_has_the_prefix_of_the_inventory() -> None:
    assert Host("node1", "10.0.0.1").layout == DEFAULT_LAYOUT
    assert Host("node1", "10.0.0.1", variables={"cluster_prefix": "/opt/cluster"}).layout == ELSEWHERE


def test_scripts_for_slurm_name_the_programs_below_the_prefix() -> None:
    text = submission_text.script(with_reason=True, deadline_s=10, layout=ELSEWHERE)
    assert "/opt/cluster/libexec/clusterctl/check_node.py" in text
    assert "/usr/local" not in text
    text = KINDS["slurm"](Submission("job", ("./hello",), nodes=2, nproc_per_node=1, by_srun=True, layout=ELSEWHERE))
    assert "/opt/cluster/openmpi/libexec/clusterctl-hello" in text
    assert "/usr/local" not in text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "node1\nnode2\n[all:vars]\ncluster_prefix=opt/cluster\n",
            "node1: cluster_prefix is 'opt/cluster', which is not",
        ),
        ("node1 cluster_prefix=/opt/a\nnode2\n", "cluster_prefix is /opt/a on node1 and /usr/local on node2"),
    ],
)
def test_an_inventory_with_another_value_is_refused(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text(lines)
    with pytest.raises(ConfigError) as refused:
        ansible_inventory.load(path)
    assert words in str(refused.value)


def test_the_prefix_of_a_template_and_of_an_extra_variable_is_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("node1\n[all:vars]\nbase=/opt\ncluster_prefix={{ base }}/cluster\n")
    assert ansible_inventory.load(path).host("node1").layout == ELSEWHERE
    given = InventoryOptions(extra_vars=("cluster_prefix=/srv/sw",))
    assert ansible_inventory.load(path, given).host("node1").layout == Layout("/srv/sw")
