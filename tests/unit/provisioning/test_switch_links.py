"""The playbook that switches links, played by Ansible on this machine: all hosts or none."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.model.hosts import InventorySources
from clusterctl.provisioning import playbook, task_results
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.model.run_record import Event

pytestmark = pytest.mark.programs

KEY = "0123456789abcdef"


def install(root: Path, version: str) -> str:
    tree = root / f"demo-{version}-{KEY}"
    tree.mkdir(parents=True)
    manifest = artifact.manifest_bytes([])
    (tree / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes("demo", version, KEY, {}, digest))
    return str(tree)


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """Two hosts that are folders of this machine, each with two versions and a link to the second."""
    found = {}
    for host in ("h1", "h2"):
        found[host] = tmp_path / host
        install(found[host], "1")
        install(found[host], "2")
        (found[host] / "demo").symlink_to(f"demo-2-{KEY}")
    return found


def play(folder: Path, links: dict[str, dict[str, str]], lines: str) -> tuple[playbook.End, task_results.TaskResults]:
    (folder / "i.ini").write_text(lines, encoding="utf-8")
    private = folder / "private"
    private.mkdir(mode=0o700)
    heard = task_results.TaskResults()
    seen: list[Event] = []

    def hear(event: Event) -> None:
        seen.append(event)
        heard.add(event)

    what: Any = playbook.Play(
        content.playbook("switch_links"),
        InventorySources.of(folder / "i.ini"),
        variables={"software_links": links},
    )
    return playbook.run(what, private, folder / "log", hear, playbook.Cancel()), heard


def targets(roots: dict[str, Path]) -> list[str]:
    return [str((root / "demo").readlink()) for root in roots.values()]


LOCAL = "h1 ansible_connection=local\nh2 ansible_connection=local\n"


def test_all_hosts_are_switched(tmp_path: Path, roots: dict[str, Path]) -> None:
    links = {host: {f"{root}/demo": f"{root}/demo-1-{KEY}"} for host, root in roots.items()}
    end, heard = play(tmp_path, links, LOCAL)
    assert end.status == "successful", (tmp_path / "log").read_text(encoding="utf-8")
    assert targets(roots) == [f"demo-1-{KEY}"] * 2
    assert [one.outcome for one in heard.summaries(["h1", "h2"], end)] == ["changed", "changed"]


def test_a_folder_that_is_gone_on_one_host_stops_all(tmp_path: Path, roots: dict[str, Path]) -> None:
    links = {host: {f"{root}/demo": f"{root}/demo-1-{KEY}"} for host, root in roots.items()}
    links["h2"] = {f"{roots['h2']}/demo": f"{roots['h2']}/demo-9-{KEY}"}
    end, heard = play(tmp_path, links, LOCAL)
    assert end.failed == {"h2"}
    assert targets(roots) == [f"demo-2-{KEY}"] * 2
    assert "demo-9" in heard.summaries(["h2"], end)[0].message


def test_a_switch_that_fails_on_one_host_is_taken_back_on_the_others(tmp_path: Path, roots: dict[str, Path]) -> None:
    long = "x" * 250  # a name of its own beside it would be too long for the file system
    links = {host: {f"{root}/demo": f"{root}/demo-1-{KEY}"} for host, root in roots.items()}
    links["h2"][f"{roots['h2']}/{long}"] = f"{roots['h2']}/demo-1-{KEY}"
    end, heard = play(tmp_path, links, LOCAL)
    assert targets(roots) == [f"demo-2-{KEY}"] * 2
    assert end.failed == {"h1", "h2"}
    first, second = heard.summaries(["h1", "h2"], end)
    assert "because another node failed" in first.message
    assert "File name too long" in second.message
    assert "lead where they led before" in second.message
