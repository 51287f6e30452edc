"""A source archive that root unpacks changes nothing outside of its folder."""

from __future__ import annotations

import contextlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import build_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, sha256_of

if TYPE_CHECKING:
    from pathlib import Path

_LINK, _TWIN, _FOLDER, _FILE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.REGTYPE
# A link whose end is inside as long as 'a' and 'b' are missing; as links they lead it out.
_LATER = [("l", _LINK, "a/b/../../outside"), ("a", _LINK, "."), ("b", _LINK, ".")]
_TWICE = [("outside", _FOLDER, ""), ("x", _FOLDER, ""), ("x/y", _FOLDER, ""), ("x/y/l", _LINK, "../../outside")]
ARCHIVES = {
    "a second name through a link": [*_LATER, ("twin", _TWIN, "l/f"), ("twin", _FILE, "new")],
    "a file through a link": [*_LATER, ("l/f", _FILE, "new")],
    "a file in place of a link": [("l", _LINK, "a/b/../../outside/f"), *_LATER[1:], ("l", _FILE, "new")],
    "a folder in place of a link": [*_LATER, ("l", _FOLDER, "")],
    "a second name of a link, at another depth": [*_TWICE, ("l", _TWIN, "x/y/l"), ("l/f", _FILE, "new")],
}


def packed(path: Path, members: list[tuple[str, bytes, str]]) -> Path:
    """Write an archive; the third word is a file's content, or where a link leads."""
    with tarfile.open(path, "w:gz") as bundle:
        for name, kind, word in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o777
            member.linkname = "" if kind == _FILE else word
            member.size = len(word) if kind == _FILE else 0
            bundle.addfile(member, io.BytesIO(word.encode()))
    return path


@pytest.mark.parametrize("is_filtered", [True, False], ids=["filter", "old Python"])
@pytest.mark.parametrize("name", ARCHIVES)
def test_no_member_reaches_a_file_outside_of_the_folder(
    name: str, is_filtered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_filtered:
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "f").write_text("old")
    archive = packed(tmp_path / "source.tar.gz", ARCHIVES[name])
    with contextlib.suppress(ArtifactError, tarfile.TarError):
        build_files.unpack(str(archive), tmp_path / "work" / "source", 0, [])
    assert (outside / "f").read_text() == "old"
    assert outside.stat().st_mode & 0o777 == 0o700


def test_links_and_second_names_within_the_folder_are_unpacked(tmp_path: Path) -> None:
    members = [
        ("top", _FOLDER, ""),
        ("top/lib", _FOLDER, ""),
        ("top/lib/x.so.1", _FILE, "one"),
        ("top/lib/x.so", _LINK, "x.so.1"),
        ("top/lib64", _LINK, "lib"),
        ("top/twin", _TWIN, "top/lib/x.so.1"),
    ]
    build_files.unpack(str(packed(tmp_path / "source.tar.gz", members)), tmp_path / "work", 1, [])
    assert [(tmp_path / "work" / name).read_text() for name in ("lib64/x.so", "twin")] == ["one", "one"]


def test_a_file_of_a_build_goes_through_no_link_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    work = tmp_path / "one" / "work"
    work.mkdir(parents=True)
    archive = packed(tmp_path / "source.tar.gz", _LATER)
    patch = tmp_path / "patch"
    patch.write_text("new")
    files = [
        {"path": str(path), "sha256": sha256_of(path), "size": path.stat().st_size, "unpack": is_archive, **rest}
        for path, is_archive, rest in (
            (archive, True, {"dest": "source", "strip": 0, "exclude": []}),
            (patch, False, {"dest": "source/l/patch"}),
        )
    ]
    (tmp_path / "one" / "outside").mkdir()
    with pytest.raises(ArtifactError, match="link"):
        build_files.bring(files, work, "demo 1.0", lambda _line: None)
    assert not list((tmp_path / "one" / "outside").iterdir())
