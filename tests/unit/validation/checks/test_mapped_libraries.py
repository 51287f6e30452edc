"""Libraries of MPI whose content is not what was installed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import node_programs
import pytest
from clusterctl.model.job_outcome import OutputLine
from clusterctl.validation.checks import base, mapped_libraries

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("node1", "node2", "node3")
SITE = base.Site(
    "5.0.7",
    dict.fromkeys(NODES, 1),
    platforms={"node1": "debian", "node2": "debian", "node3": "debian", "node4": "rocky"},
    libraries=dict.fromkeys(NODES, "/usr/local/openmpi-5.0.7-k"),
)


def line(host: str, digest: str = "a", *changed: str, name: str = "libmpi.so.40") -> OutputLine:
    files = {name: digest, "libpmix.so.2": "p"}
    event = {"clusterctl": 1, "event": "mapped", "rank": 0, "host": host, "files": files, "changed": changed}
    return OutputLine("stdout", 1.0, json.dumps(event))


def test_equal_contents_are_fine_and_platforms_may_differ() -> None:
    assert mapped_libraries.changed(SITE, [line(node) for node in NODES]) is None
    assert mapped_libraries.changed(SITE, [*(line(node) for node in NODES), line("node4", "b")]) is None
    assert mapped_libraries.changed(SITE, []) is None


def test_the_manifest_names_the_node_even_of_two() -> None:
    path = "/usr/local/openmpi-5.0.7-k/lib/libmpi.so.40"
    found = mapped_libraries.changed(SITE, [line("node1"), line("node2", "b", path)])
    assert found.hosts == ("node2",)
    assert "libmpi.so.40 on node2 is not the file that was installed" in found.reason
    assert "remove /usr/local/openmpi-5.0.7-k" in found.cure
    assert [one.nodes for one in found.culprits] == [("node2",)]


def test_without_a_manifest_the_majority_decides() -> None:
    found = mapped_libraries.changed(SITE, [line("node1"), line("node2"), line("node3", "b")])
    assert (found.hosts, found.reason) == (("node3",), "libmpi.so.40 has another content on node3 than on most nodes")
    tie = mapped_libraries.changed(SITE, [line("node1"), line("node3", "b")])
    assert set(tie.hosts) == {"node1", "node3"}


# --- what the node's program finds ---


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """An artifact with one library that this test maps, and its manifest."""
    folder = tmp_path / "openmpi-5"
    (folder / "lib").mkdir(parents=True)
    library = folder / "lib" / "libmpi.so.40"
    library.write_bytes(b"x" * 5000)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    manifest = {"files": [["lib", "d", 0, ""], ["lib/libmpi.so.40", "f", 5000, digest, "0644"]]}
    (folder / ".clusterctl.files.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


MAPS = (
    "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=1); print(flush=True); input()"
)


def looked(artifact: Path) -> dict[str, Any]:
    """Return what the program says of a process that has the library mapped."""
    program = node_programs.load("mapped_files")
    said: list[dict[str, Any]] = []
    argv = [sys.executable, "-c", MAPS, str(artifact / "lib" / "libmpi.so.40")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        contents = program.Contents(lambda _event, **figures: said.append(figures))
        assert [contents.look(process.pid) for _ in range(2)] == [False, True]
        process.communicate(b"\n")
    return said[0]


def test_a_flipped_bit_in_a_mapped_library_is_seen(artifact: Path) -> None:
    library = artifact / "lib" / "libmpi.so.40"
    whole = looked(artifact)
    assert whole["changed"] == []
    assert whole["files"]["libmpi.so.40"] == hashlib.sha256(b"x" * 5000).hexdigest()
    data = bytearray(library.read_bytes())
    data[3000] ^= 1
    library.write_bytes(data)
    assert looked(artifact)["changed"] == [str(library)]
    assert library.stat().st_size == 5000
