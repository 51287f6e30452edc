"""Manifests and markers of installed artifacts that are no files of ours: the modules and the probe stay in bounds."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    libraries as node_libraries,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    path_state,
    record,
)
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_collect


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A whole artifact."""
    folder = tmp_path / "openmpi-1.0-k"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib").chmod(0o755)
    (folder / "lib/libmpi.so").write_bytes(b"library")
    (folder / "lib/libmpi.so").chmod(0o644)
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(folder)))
    (folder / artifact.MANIFEST).write_bytes(manifest)
    mark(folder, hashlib.sha256(manifest).hexdigest())
    return folder


def mark(folder: Path, digest: str) -> None:
    (folder / artifact.MARKER).write_bytes(artifact.marker_bytes("openmpi", "1.0", "k", {}, digest))


def sparse(path: Path) -> None:
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(400 << 30)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


HUGE_MANIFESTS = {
    "sparse": sparse,
    "pipe": pipe,
    "device": device,
    "entries": lambda path: path.write_bytes(b'{"schema":1,"files":[' + b"[]," * 300_000 + b"[]]}"),
    "depth": lambda path: path.write_bytes(b"[" * 100_000),
    "a number": lambda path: path.write_bytes(b'{"schema":1,"files":[["a","f",' + b"9" * 200_000 + b',"","0644"]]}'),
    "terabytes": lambda path: path.write_bytes(
        b'{"schema":1,"files":[%s]}' % b",".join(b'["lib/%d","f",1000000000000,"","0644"]' % n for n in range(100))
    ),
    "a map": lambda path: path.write_bytes(b'{"schema":1,"files":{"a":1}}'),
    "an entry": lambda path: path.write_bytes(b'{"schema":1,"files":[["a","f","x","","0644"]]}'),
}


@pytest.mark.parametrize("name", HUGE_MANIFESTS)
@pytest.mark.parametrize("which", [artifact.MANIFEST, artifact.MARKER])
def test_a_manifest_or_marker_that_is_no_file_of_ours_is_a_sentence_in_time(
    installed: Path, name: str, which: str
) -> None:
    HUGE_MANIFESTS[name](installed / which)
    if which == artifact.MANIFEST and name not in {"sparse", "pipe", "device"}:
        mark(installed, hashlib.sha256((installed / which).read_bytes()).hexdigest())

    def act() -> list[str]:
        asked = [{"name": "openmpi", "link": str(installed), "inputs": ["version"]}]
        found = record.collect({"artifacts": asked})["artifacts"][0]
        path_state.watch_state(str(installed), "artifact")
        state = artifact.inspect_tree(str(installed), "openmpi", "1.0", "k")
        libraries = node_libraries.library_version("libmpi.so", f"{installed}/lib/libmpi.so", str(installed.parent))
        size = artifact_collect.size_of(installed)
        return [found["problem"], state.problem, libraries, str(size)]

    found, problem, version, size = within_bounds(act)
    assert found
    assert "\n" not in found
    assert problem
    assert version == ("" if which == artifact.MARKER else "1.0")
    assert int(size) < artifact.MOST_UNPACKED


def within_bounds(act: Callable[[], list[str]]) -> list[str]:
    """Return what a function gives within a minute and 100 MB."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), size + (100 << 20)))
            signal.alarm(60)
            os.write(writer, json.dumps(act()).encode())
        except BaseException as error:  # noqa: BLE001 - the child must end here
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:  # noqa: PTH123 - a descriptor
        said = stream.read()
    os.waitpid(pid, 0)
    return list(json.loads(said))
