"""Back to what it was: a node after ``uninstall`` is, file by file, the node before the first provision."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from validated import CLUSTERCTL, engine

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.sandbox import Sandbox
    from conftest import Start

pytestmark = pytest.mark.cluster

NODES = ("node1", "node2")
# What every node has of its own: no newline at the end, a mode of its own, an unquoted list, a link of another hand.
PLANTED = r"""
printf 'NCCL_DEBUG=WARN' > /etc/nccl.conf && chmod 0640 /etc/nccl.conf && chown root:mail /etc/nccl.conf
printf 'PATH=/usr/local/bin:/usr/bin:/bin\nEDITOR=vi\n\n' > /etc/environment
printf '# ours\nother.example ssh-ed25519 AAAA\n' > /etc/ssh/ssh_known_hosts && chmod 0600 /etc/ssh/ssh_known_hosts
printf '* soft nofile 256\n' > /etc/security/limits.d/10-low.conf
mkdir -p /etc/zsh /etc/csh /etc/fish/conf.d && printf '# ours' > /etc/zsh/zprofile && echo umask 022 > /etc/csh.login
mkdir -p /opt/ompi && ln -s /opt/ompi /usr/local/openmpi
printf '127.0.1.1 node1 node2 # ours' >> /etc/hosts
"""
# Packages as an installation would have brought them; "wanted" is the administrator's and stands on one of them.
PACKAGES = r"""
cd /var/tmp && for name in brought-lib brought-tool wanted; do
  needs=; [ $name = wanted ] && needs='Depends: brought-lib'; [ $name = brought-tool ] && needs='Depends: brought-lib'
  mkdir -p $name/DEBIAN && printf '%s\n' "Package: $name" 'Version: 1' 'Architecture: all' 'Maintainer: none' \
    ${needs:+"$needs"} 'Description: a test' > $name/DEBIAN/control
  dpkg-deb --build $name > /dev/null && dpkg --install $name.deb > /dev/null; rm -r $name $name.deb
done
python3 - <<'END'
import json
place = "/var/lib/clusterctl/origins.json"
record = json.load(open(place))
record["packages"] = ["brought-lib", "brought-tool"]
open(place, "w").write(json.dumps(record))
END
"""
LISTING = r"""
import hashlib, json, os, stat
found = {}
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in {"/proc", "/sys", "/dev", "/run"}]
    for path in (os.path.join(folder, name) for name in [*folders, *names]):
        state = os.lstat(path)
        content = ""
        if stat.S_ISLNK(state.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(state.st_mode):
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
        found[path] = [oct(state.st_mode), state.st_uid, state.st_gid, content]
print(json.dumps(found))
"""
# What differs all the same, as docs/how-to/uninstall.md says.
LEFT = {
    *(f"/etc/{name}-" for name in ("group", "gshadow", "passwd", "shadow", "subgid", "subuid")),
    "/home/cluster/.ansible",
    "/home/cluster/.ansible/tmp",
}


@dataclass
class Cluster:
    """Two nodes, with a listing of each before the first provision."""

    box: Sandbox
    before: dict[str, dict[str, Any]]

    def on(self, node: str, *argv: str) -> str:
        return engine().text("exec", self.box.node(node).container, *argv)

    def uninstall(self, *options: str, inventory: Path | None = None) -> tuple[int, dict[str, Any], str]:
        argv = [*CLUSTERCTL, "uninstall", "--yes", "--format", "json", *options, str(inventory or self.box.inventory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    def listing(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.on(node, "python3", "-c", LISTING))
        return found

    def differing(self, node: str) -> dict[str, Any]:
        now, before = self.listing(node), self.before[node]
        return {
            path: (before.get(path), now.get(path)) for path in {*now, *before} if now.get(path) != before.get(path)
        }


@pytest.fixture(scope="module")
def cluster(sandbox: Start) -> Cluster:
    found = Cluster(sandbox("uninstall", nodes=len(NODES)), {})
    found.box.inventory.write_text(found.box.inventory.read_text() + "cluster_user=mpi\n")
    for node in NODES:
        found.on(node, "sh", "-e", "-c", PLANTED)
        found.before[node] = found.listing(node)
    argv = [*CLUSTERCTL, "provision", "--yes", "--no-validate", str(found.box.inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return found


def test_what_stands_in_the_way_is_named_and_nothing_is_changed(cluster: Cluster) -> None:
    assert "/etc/security/limits.d/zz-clusterctl.conf" in cluster.differing("node2")
    provisioned = cluster.listing("node2")
    rank = ["sh", "-c", "OMPI_COMM_WORLD_RANK=0 setsid sleep 67 > /dev/null 2>&1 & echo $!"]
    pid = cluster.on("node2", *rank)
    try:
        code, record, _ = cluster.uninstall()
    finally:
        cluster.on("node2", "kill", pid)
    assert (code, [one["host"] for one in record["problems"]]) == (2, ["node2"])
    assert "sleep 67" in record["problems"][0]["problem"]
    other = cluster.box.inventory.with_name("other.ini")
    other.write_text(cluster.box.inventory.read_text())
    code, ahead, _ = cluster.uninstall("--check")
    assert (code, ahead["outcome"]) == (0, "done")
    assert any("removed /usr/local/mpi4py-" in phrase for phrase in ahead["hosts"][0]["changes"])
    assert cluster.listing("node2") == provisioned


def test_a_node_is_what_it_was_file_by_file(cluster: Cluster) -> None:
    """One node first, which the other still knows; packages that something else needs, and the account, stay."""
    cluster.on("node2", "sh", "-e", "-c", PACKAGES)
    code, one, said = cluster.uninstall("--limit", "node2")
    assert code == 0, said
    told = " ".join(one["told"])
    for words in ("other nodes still know node2", "brought-lib stays, because wanted needs it", "account mpi stays"):
        assert words in told, told
    assert cluster.on("node1", "readlink", "/usr/local/openmpi").startswith("openmpi-")
    status = cluster.on("node2", "dpkg-query", "-W", "-f", "${Package} ", "brought-*", "wanted").split()
    assert status == ["brought-lib", "wanted"]
    cluster.on("node2", "dpkg", "--purge", "wanted")

    code, rest, said = cluster.uninstall("--remove-user")
    assert code == 0, said
    assert rest["told"] == []
    apt = ("/var/lib/dpkg/", "/var/log/", "/var/cache/debconf/")
    for node in NODES:
        different = {path: pair for path, pair in cluster.differing(node).items() if not path.startswith(apt)}
        assert {path: pair for path, pair in different.items() if path not in LEFT} == {}
    code, again, _ = cluster.uninstall()
    assert (code, again["outcome"]) == (0, "nothing to do")

    other = cluster.box.inventory.with_name("other.ini")
    code, copied, _ = cluster.uninstall(inventory=other)
    assert (code, copied["outcome"]) == (0, "nothing to do"), "a copy names the same machines, so it has their past"
