from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kept_runs
import pytest
from clusterctl.model.results import Culprit
from clusterctl.state import history as run_history
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError
from kept_runs import CLUSTER, key, large, leave_folder, record, remember, values


def spoil_beginning(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"no database at all")


def spoil_pages(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * (size - 4096))


def spoil_length(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def spoil_owner(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE mine (a)")
    raw.close()


@pytest.mark.parametrize("spoil", [spoil_beginning, spoil_pages, spoil_length, spoil_owner])
def test_a_damaged_file_is_set_aside_and_said_so(state: Path, spoil: Any) -> None:
    path = paths.history_file()
    leave_folder(record(1))
    remember(record(0), record(1))
    spoil(path)
    spoilt = path.read_bytes()
    back, (warning,) = run_history.remember(CLUSTER, record(2))
    assert warning.startswith(f"The history {path} was damaged (")
    (aside,) = state.glob("history.sqlite3.damaged-*Z")
    assert f"set aside as {aside};" in warning
    assert aside.read_bytes()[100:] == spoilt[100:]  # the header counts who opened it
    assert len(back.trends[0].points) == 2  # the folder of night 1 is still there
    with run_history.open() as history:
        assert history.warnings == []
        assert len(history.runs(CLUSTER)) == 2


_WARNED = """
import sys
sys.path.insert(0, sys.argv[1])
import kept_runs as t
from clusterctl.state import history as run_history
for night in range(int(sys.argv[2]), int(sys.argv[3])):
    print(*run_history.remember(t.CLUSTER, t.record(night))[1], sep="", flush=True)
"""


def test_several_that_find_the_damage_set_it_aside_once(state: Path) -> None:
    remember(record(0))
    spoil_pages(paths.history_file())
    here = str(Path(kept_runs.__file__).parent)
    children = [
        subprocess.Popen([sys.executable, "-c", _WARNED, here, str(n), str(n + 5)], stdout=subprocess.PIPE, text=True)
        for n in (10, 20, 30)
    ]
    told = [line for child in children for line in child.communicate(timeout=60)[0].splitlines() if line]
    assert len(told) == 1
    assert len([path for path in state.glob("history.sqlite3.damaged-*") if path.name.endswith("Z")]) == 1
    with run_history.open() as history:
        assert len(history.runs(CLUSTER)) == 15


def test_damage_that_shows_while_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.state.history.file._CHECKED_WHOLE", 0)  # as for a large file
    remember(record(1))
    spoil_pages(paths.history_file())
    with run_history.open() as history:
        history.add(CLUSTER, record(2))
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]
        (warning,) = history.warnings
    assert "set aside" in warning


def test_a_flipped_bit_in_figures_is_no_reference() -> None:
    remember(record(1), record(2))
    with sqlite3.connect(paths.history_file()) as raw:
        raw.execute("UPDATE results SET figures = zeroblob(length(figures)) WHERE id = 1")
    raw.close()
    with run_history.open() as history:
        assert history.reference_values(CLUSTER, key(record(3)), 20) == (100,)
        (warning,) = history.warnings
    assert warning.startswith(f"The figures of {record(1).run_id} in ")


def test_a_damaged_record_is_a_sentence() -> None:
    remember(record(1))
    with sqlite3.connect(paths.history_file()) as raw:
        raw.execute("UPDATE runs SET record = zeroblob(20)")
    raw.close()
    with run_history.open() as history, pytest.raises(ConfigError, match=r"is damaged .*; take another run"):
        history.record("last", CLUSTER)


@pytest.mark.parametrize(
    "spoiled",
    [
        "UPDATE results SET verdict = 'P@SS'",
        "UPDATE results SET culprits = '[{'",
        "UPDATE results SET culprits = '[{}]'",
        "UPDATE runs SET hosts = 'n1'",
    ],
)
def test_a_damaged_line_is_a_sentence_and_ends_no_run(spoiled: str) -> None:
    remember(record(1))
    with sqlite3.connect(paths.history_file()) as raw:
        raw.execute(spoiled)
    raw.close()
    with run_history.open() as history, pytest.raises(run_history.StoreError, match="holds a damaged line") as error:
        history.runs(CLUSTER)
    assert "\n" not in str(error.value)
    culprit = Culprit(kind="node", nodes=("n1",), words="n1 is slow")
    kept, _ = run_history.remember(CLUSTER, record(2, check={"culprits": (culprit,)}))
    assert kept.run_id == record(2).run_id


def test_a_schema_whose_bytes_are_no_text_is_set_aside() -> None:
    remember(record(1))
    path = paths.history_file()
    data = path.read_bytes()
    assert data.count(b"CREATE TABLE clusters") == 1
    path.write_bytes(data.replace(b"CREATE TABLE clusters", b"CREATE T\xdfBLE clusters"))
    with run_history.open() as history:
        (warning,) = history.warnings
    assert "was damaged" in warning


_ON_A_FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import kept_runs as t
from clusterctl.state import history as run_history
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
with run_history.open() as history:  # a folder that there is no room for hinders nobody who reads
    assert history.reference_values(t.CLUSTER, t.key(t.record(3)), 20) == (100,)
    assert len(history.warnings) == 1, history.warnings
back, warnings = run_history.remember(t.CLUSTER, t.large(2))
assert back.run_id == t.record(2).run_id
print(*warnings, sep="\\n")
"""


def test_a_full_disk_costs_the_run_nothing(state: Path) -> None:
    remember(record(1))
    leave_folder(large(3))
    program = [sys.executable, "-c", _ON_A_FULL_DISK, str(Path(kept_runs.__file__).parent), "36000"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    folder, note = done.stdout.splitlines()
    assert {words.partition(" (")[0] for words in (folder, note)} == {
        f"The history {state / 'history.sqlite3'} cannot be used"
    }
    assert note.endswith("This run is not in the history; its record is in its folder.")
    assert values(record(4)) == (100, 100)  # there is room again, and the folder is heard


def test_a_state_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(run_history.StoreError, match=r"cannot be used \(.*\); make it writable, or set XDG_STATE_HOME"):
        run_history.open(Path("/proc/nowhere/history.sqlite3"))


_READ_ONLY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import kept_runs as t
from clusterctl.state import history as run_history
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
from pathlib import Path
path = Path(sys.argv[2])
with run_history.open(path) as history:
    print(len(history.runs(t.CLUSTER)))
print(*run_history.remember(t.CLUSTER, t.record(2), path)[1], sep="\\n")
"""


def test_what_cannot_be_written_can_still_be_read() -> None:
    folder = Path(tempfile.mkdtemp())  # not below pytest's own, which is closed to others
    try:
        path = folder / "history.sqlite3"
        run_history.remember(CLUSTER, record(1), path)
        path.chmod(0o444)
        folder.chmod(0o555)
        program = [sys.executable, "-c", _READ_ONLY, str(Path(kept_runs.__file__).parent), str(path)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        count, note = done.stdout.splitlines()
        assert (count, done.stderr) == ("1", "")
        assert note.startswith(f"The history {path} cannot be written;")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
