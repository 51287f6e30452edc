"""Files that a user names: links of other users lead no write and no removal elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clusterctl.cli.main import main
from clusterctl.report import files as report_files
from clusterctl.state import files
from clusterctl.support import held_path
from clusterctl.support.errors import ConfigError
from report_records import record

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.mkdir(mode=0o700)
    (path / "report.html").write_text("precious")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


def link_of_a_stranger(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.lchown(path, STRANGER, STRANGER)
    return path


@needs_root
def test_no_link_of_another_user_is_written_through(shared: Path, victim: Path) -> None:
    links = [
        link_of_a_stranger(shared / "report.html", victim / "report.html"),
        link_of_a_stranger(shared / "folder", victim) / "report.html",
        link_of_a_stranger(shared / "missing.html", victim / "new.html"),
    ]
    for path in links:
        with pytest.raises(ConfigError, match="is a link that another user can change"):
            report_files.write(record(), report_files.Places(html=path))
    assert [path.name for path in victim.iterdir()] == ["report.html"]
    assert (victim / "report.html").read_text() == "precious"


@needs_root
def test_the_verbs_that_write_an_inventory_follow_none_either(
    shared: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link_of_a_stranger(shared / "inventory.ini", victim / "report.html")
    assert main(["init", str(shared / "inventory.ini"), "--force"]) == 1
    assert "is a link that another user can change" in capsys.readouterr().err
    assert (victim / "report.html").read_text() == "precious"


def test_a_link_that_others_can_replace_is_not_followed(tmp_path: Path, shared: Path) -> None:
    """In a folder without the sticky bit, another user can set a link of ours under another name."""
    (tmp_path / "real").mkdir()
    (shared / "link").symlink_to(tmp_path / "real")
    with held_path.to_file(shared / "link" / "a") as path:
        path.write_text("x")
    assert (tmp_path / "real" / "a").read_text() == "x"
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="another user can change"), held_path.to_file(shared / "link" / "a"):
        pass


def test_a_folder_that_is_replaced_meanwhile_stays_the_one_that_was_found(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "place").mkdir()
    with held_path.to_file(tmp_path / "place" / "report.html") as path:
        (tmp_path / "place").rename(tmp_path / "moved")
        (tmp_path / "place").symlink_to(victim)
        files.write_atomically(path, "new")
    assert (victim / "report.html").read_text() == "precious"
    assert (tmp_path / "moved" / "report.html").read_text() == "new"


def test_own_links_relative_paths_and_circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "up").symlink_to("../deep/er")
    (tmp_path / "deep" / "er" / "file").symlink_to("../target")
    monkeypatch.chdir(tmp_path / "deep")
    with held_path.to_file(Path("up/../up/file")) as path:
        path.write_text("x")
    assert (tmp_path / "deep" / "target").read_text() == "x"
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="Too many levels"), held_path.to_file(tmp_path / "circle"):
        pass
    with pytest.raises(FileNotFoundError), held_path.to_file(tmp_path / "none" / "file"):
        pass


@needs_root
def test_a_folder_of_another_user_is_refused(shared: Path) -> None:
    (shared / "taken").mkdir()
    os.chown(shared / "taken", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match="taken is another user's"), held_path.folder(shared / "taken", 0o755):
        pass
