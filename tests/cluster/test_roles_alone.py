"""Each role of the collection converges from the play that its README shows, on a node that had nothing before.

The collection comes from its archive, and Ansible has no configuration of this checkout.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import collection
import pytest
import role_plays
from clusterctl.sandbox.model import inventory_text

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from clusterctl.sandbox import Sandbox
    from conftest import Start

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ROLES = role_plays.roles()
WITHOUT_OTHERS = {
    "fabric": "are missing; run the role preflight first",
    "horovod": "that Horovod could be built against; run the role openmpi before horovod",
    "hosts": "put the role clusterctl.hpc.preflight before hosts",
    "mpi4py": "that mpi4py could be built against; run the role openmpi before mpi4py",
    "ssh_mesh": "put the role clusterctl.hpc.preflight before ssh_mesh",
}
LOOK_ALONE = {"preflight", "ucx"}  # without an RDMA device there is nothing to build
RECAP = re.compile(r"^(node\d+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def nodes(sandbox: Start) -> Sandbox:
    """One node for each role."""
    return sandbox("alone", nodes=len(ROLES), stack=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of collections into which the collection was installed from its archive."""
    folder = tmp_path_factory.mktemp("collections")
    archive = collection.build(folder, folder / "source")
    collection.install(archive, folder)
    return folder


@dataclasses.dataclass
class Told:
    rc: int
    text: str

    @property
    def changed(self) -> int:
        (recap,) = RECAP.findall(self.text)
        return int(recap[2])


def told(done: subprocess.CompletedProcess[str]) -> Told:
    return Told(done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_converges_alone_on_a_fresh_node(role: Path, nodes: Sandbox, installed: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    node = nodes.nodes[ROLES.index(role)]
    inventory.write_text(inventory_text(nodes.model_copy(update={"nodes": (node,)})), encoding="utf-8")

    def play(plays: str) -> Told:
        options = ("-i", str(inventory))
        return told(role_plays.play(plays, tmp_path, *options, collections=installed, config=tmp_path / "ansible.cfg"))

    if role.name in WITHOUT_OTHERS:
        refused = play(role_plays.alone(role.name))
        assert refused.rc == 2, refused.text
        assert WITHOUT_OTHERS[role.name] in " ".join(refused.text.split())
        assert refused.changed == 0, refused.text
    (shown,) = role_plays.shown(role)
    first = play(shown)
    assert first.rc == 0, first.text
    assert first.changed or role.name in LOOK_ALONE, first.text
    second = play(shown)
    assert second.rc == 0, second.text
    assert second.changed == 0, second.text
