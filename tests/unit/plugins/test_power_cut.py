"""The order in which nodes write, sync and rename: a power cut leaves the old content or the new one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_links
from clusterctl.support import content

UTILS = "from ansible_collections.clusterctl.hpc.plugins.module_utils import"
CALLS = "openat,write,fsync,syncfs,rename,renameat,renameat2,symlink,symlinkat"
pytestmark = [pytest.mark.programs, pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")]


def traced(tmp_path: Path, program: str) -> list[str]:
    """Run a program and return its calls of the kernel that name the folder of the test, as name and kind of file."""
    trace = tmp_path.with_name(f"{tmp_path.name}.trace")
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={CALLS}", sys.executable, "-c", program],
        check=True,
        env={**os.environ, "PYTHONPATH": str(content.collections_path()), "PLACE": str(tmp_path)},
    )
    lines = [line for line in trace.read_text().splitlines() if str(tmp_path) in line and "openat" not in line]
    return [re.sub(r"^\d+ +([a-z]+?)(?:at2?)?\(.*", r"\1", line) for line in lines]


def test_a_file_is_on_the_disk_before_its_name_leads_to_it(tmp_path: Path) -> None:
    program = f"import os; {UTILS} disk_files; disk_files.write(os.environ['PLACE'] + '/file', 'new')"
    assert traced(tmp_path, program) == ["write", "fsync", "rename"]


def test_a_switched_link_is_on_the_disk_before_it_is_reported(tmp_path: Path) -> None:
    (tmp_path / "openmpi-5").mkdir()
    program = (
        f"import os; {UTILS} artifact_links as a; p = os.environ['PLACE']; a.switch(p + '/openmpi', p + '/openmpi-5')"
    )
    assert traced(tmp_path, program) == ["symlink", "rename", "fsync"]


def test_the_record_of_origins_is_on_the_disk_before_a_file_changes(tmp_path: Path) -> None:
    program = f"import os; {UTILS} origins; os.environ['CLUSTERCTL_ORIGINS'] = os.environ['PLACE'] + '/origins.json'; "
    assert traced(tmp_path, f"{program} origins.save({{'schema': 1}})") == ["write", "fsync", "rename"]


def test_the_files_of_an_artifact_are_on_the_disk_before_its_marker_and_the_marker_before_its_name(
    tmp_path: Path,
) -> None:
    program = "from pathlib import Path; import os; from ansible_collections.clusterctl.hpc.plugins.modules import"
    program += " artifact_install as a; place = Path(os.environ['PLACE']); (place / 'partial').mkdir();"
    program += " (place / 'partial' / 'library').write_bytes(b'content');"
    program += " install = a.Install.__new__(a.Install); install.tree = str(place / 'tree'); install.base = 'tree';"
    program += " install.p = {'root': str(place)}; install._finish(str(place / 'partial'), b'{}')"
    calls = ["write", "syncfs", "write", "fsync", "fsync", "rename", "fsync"]
    assert traced(tmp_path, program) == calls, "library, file system, marker, marker, its folder, name, its folder"


def test_without_syncfs_all_disks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(artifact_links.ctypes, "CDLL", lambda *_, **__: object())
    monkeypatch.setattr(artifact_links.os, "sync", lambda: called.append("sync"))
    artifact_links.files_below(str(tmp_path))
    assert called == ["sync"]


def test_a_disk_that_refuses_a_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(artifact_links.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syncfs=refused))
    with pytest.raises(OSError, match="Input/output error") as caught:
        artifact_links.files_below(str(tmp_path))
    assert caught.value.filename == str(tmp_path)
