"""The jobs' user races against root while root provisions, upgrades, goes back, looks before a job, and uninstalls.

``programs/racing_user.py`` swaps names in shared folders and in its home for links, pipes and sparse files.
A run may end with a sentence about what that user did. It ends, and changes nothing of root's.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from artifact_lab import Lab
from clusterctl.sandbox import Sandbox
from clusterctl.support import content
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

NODES = ("node1", "node2")
USER = "mpi"
PROGRAM = Path(__file__).with_name("programs") / "racing_user.py"
STOP = "/run/stop-racing"
ROUNDS = "/var/tmp/racing-rounds"  # noqa: S108 - of a node
# What is root's: content, owner and mode of canaries, names in folders that run programs, programs with root's rights.
CANARIES = """
mkdir -p /etc/canary.d; for at in /etc/cron.d/canary /etc/canary.d/file /root/canary; do echo '# of root' > $at; done
touch /root/since
"""
LOOK = """
cd /; for at in /etc/cron.d /etc/canary.d /root/canary /root/.ssh /etc/sudoers /etc/sudoers.d /etc/ld.so.preload; do
  find $at -exec stat -c '%n %u %g %a %F' {} + -type f -exec sha256sum {} + 2>/dev/null; done
find / -xdev -newer /root/since -type f -perm /6000 -exec stat -c '%n %U %a' {} +
find /etc /root /usr -xdev -newer /root/since -user USER -print
"""
LAYOUT = yaml.safe_load((content.root() / "roles/validation/vars/main.yml").read_text(encoding="utf-8"))
WITHIN_S = 120


class Raced(Cluster):
    """Two nodes whose jobs' user races."""

    @property
    def inventory(self) -> Path:
        return self.box.inventory

    def look(self) -> dict[str, str]:
        return {node: self.on(node, "sh", "-c", LOOK.replace("USER", USER)) for node in NODES}

    @contextlib.contextmanager
    def racing(self) -> Iterator[None]:
        for number, node in enumerate(NODES):
            self.on(node, "rm", "-f", STOP)
            container = self.box.node(node).container
            argv = ["nice", "-n", "15", "runuser", "-u", USER, "--", "python3", "/srv/racing_user.py", str(number)]
            self.engine.run("exec", "-d", container, *argv)
        try:
            time.sleep(1)
            yield
        finally:
            for node in NODES:
                self.on(node, "touch", STOP)
        for node in NODES:
            self.on(node, "sh", "-c", f"while pgrep -u {USER} -f racing_user >/dev/null; do sleep 0.1; done")
            assert int(self.on(node, "cat", ROUNDS)) > 0

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb that may fail with a sentence."""
        argv = [*CLUSTERCTL, *words, "--yes", "--format", "json", str(self.inventory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WITHIN_S)
        assert "Traceback" not in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
        return done


@pytest.fixture(scope="module")
def raced(sandbox: Callable[..., Sandbox]) -> Raced:
    found = Raced(sandbox("races", nodes=len(NODES)))
    found.inventory.write_text(found.inventory.read_text(encoding="utf-8") + f"cluster_user={USER}\n", encoding="utf-8")
    done = found.verb("provision", "--no-validate", "--tags", "hosts,ssh_mesh")
    assert done.returncode == 0, done.stdout + done.stderr
    for node in NODES:
        found.on(node, "sh", "-c", CANARIES)
        found.on(node, "sh", "-c", 'printf %s "$1" > /srv/racing_user.py', "sh", PROGRAM.read_text(encoding="utf-8"))
        for name in ("check_node.py", *LAYOUT["__validation_shared"]):
            place = "roles/validation/files" if name == "check_node.py" else "plugins/module_utils"
            text = (content.root() / place / name).read_text(encoding="utf-8")
            put = 'mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"'
            found.on(node, "sh", "-c", put, "sh", f"/srv/look/{name}", text)
    return found


def test_a_provision_of_the_mesh_ends_and_reaches_nothing_else(raced: Raced) -> None:
    before = raced.look()
    with raced.racing():
        ended = [raced.verb("provision", "--no-validate", "--tags", "ssh_mesh").returncode for _ in range(2)]
    assert set(ended) <= {0, 2}
    assert raced.look() == before


@pytest.mark.long
def test_an_upgrade_and_the_way_back_install_what_the_controller_has(raced: Raced, tmp_path: Path) -> None:
    """A second version and the first one again: pushed files and work folders lie where the user may write."""
    lab = Lab(raced.box, tmp_path)
    first = [lab.build(), lab.install()]
    second = [lab.build(inputs={"variant": "second"}), lab.install(inputs={"variant": "second"})]
    before = raced.look()
    assert lab.play(*first).rc == 0
    with raced.racing():
        played = [lab.play(*second), lab.play(lab.install())]
    assert raced.look() == before
    for one in played:
        assert "Traceback" not in one.text, one.text[-3000:]
        assert one.rc == 0, one.text[-3000:]
    assert lab.said("node2", "/usr/local/demo/bin/demo") == "42"


def test_a_look_before_a_job_is_neither_stopped_nor_deceived(raced: Raced) -> None:
    """The user kills the prolog's children: a node is not unfit because of that."""
    uid = raced.on("node1", "id", "-u", USER)
    look = f"SLURM_JOB_UID={uid} python3 -I -S /srv/look/check_node.py --quick --node node1; echo $?"
    before = raced.look()
    with raced.racing():
        began = time.monotonic()
        said = [raced.on("node1", "sh", "-c", look) for _ in range(8)]
        assert time.monotonic() - began < WITHIN_S
    assert raced.look() == before
    causes = [re.findall(r"was ended (?:by signal \d+|early)", one) for one in said]
    assert causes == [[]] * len(said), said


@pytest.mark.long
def test_an_uninstall_ends_and_reaches_nothing_else(raced: Raced) -> None:
    before = raced.look()
    with raced.racing():
        done = raced.verb("uninstall")
    found: dict[str, Any] = raced.look()
    assert done.returncode in {0, 2}, done.stdout + done.stderr
    assert found == before
