"""Packages of a user's lock that are commits of git repositories or folders; real git and real uv run here."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from user_locks import archive, brought, digest, names, pylock, requirements
from wheel_files import make_wheel

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("without_an_index", "_a_user_of_git")]

BUILDS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'


@pytest.fixture
def _a_user_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of packages in place of an index."""
    for name in ("setuptools", "wheel"):
        make_wheel(tmp_path / "own", name, "70.0")
    return tmp_path / "own"


def package(folder: Path, name: str, version: str = "1.0", more: str = "") -> Path:
    """Write a package of Python as a folder."""
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'{BUILDS}[project]\nname = "{name}"\nversion = "{version}"\n{more}')
    (folder / "src" / f"{name}.py").write_text("")
    return folder


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def commit(folder: Path) -> str:
    """Make a repository of a folder, or one more commit in it; returns the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message=x")
    return git(folder, "rev-parse", "HEAD")


def vcs(name: str, folder: Path, at: str, more: str = "") -> str:
    return f'name = "{name}"\nvcs = {{type = "git", url = "{folder.as_uri()}", commit-id = "{at}"{more}}}'


def files(cache: Path, found: w.LockedEnvironment, name: str) -> list[str]:
    """Return the files of an archive that was packed."""
    (source,) = [one.source for one in found.built if one.source.name == name]
    path = cache / "sources" / source.cached_as
    assert digest(path) == source.sha256
    with tarfile.open(path) as tar:
        return sorted(member.name.partition("/")[2] for member in tar if not member.isdir())


def refused(tmp_path: Path, own: Path, *packages: str) -> str:
    with pytest.raises(w.LockError) as error:
        brought(tmp_path / "cache", pylock(tmp_path, *packages), own=str(own))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("sources/*.tar.gz"))
    return str(error.value)


def test_a_commit_is_packed_once_and_stays_when_its_branch_goes_on(tmp_path: Path, own: Path) -> None:
    repository = package(tmp_path / "repository", "top", "1.5")
    first = commit(repository)
    (repository / "src" / "later.py").write_text("")
    commit(repository)
    lock = pylock(tmp_path, vcs("top", repository, first))
    found = brought(tmp_path / "cache", lock, own=str(own))
    (built,) = found.built
    assert (built.source.name, built.source.version) == ("top", "1.5"), "its own pyproject.toml tells the version"
    assert [tool.name for tool in built.tools] == ["setuptools", "wheel"]
    assert files(tmp_path / "cache", found, "top") == ["pyproject.toml", "src/top.py"]
    repository.rename(tmp_path / "gone")
    assert brought(tmp_path / "cache", lock, own=str(own)) == found, "nobody is asked a second time"
    (tmp_path / "gone").rename(repository)
    for path in (tmp_path / "cache" / "sources").iterdir():
        path.unlink()
    assert brought(tmp_path / "cache", lock, own=str(own)) == found, "the same commit is the same bytes"


def test_nothing_of_a_repository_runs_on_the_controller(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    settings = f'[filter "own"]\n\tsmudge = {program}\n[core]\n\thooksPath = {tmp_path / "hooks"}\n'
    (tmp_path / "hooks").mkdir()
    for hook in ("post-checkout", "reference-transaction", "post-merge"):
        (tmp_path / "hooks" / hook).symlink_to(program)
    repository = package(tmp_path / "repository", "top")
    (repository / ".gitattributes").write_text("*.py filter=own\n")
    (repository / "setup.py").write_text(f"open({str(ran)!r}, 'w')\n")
    at = commit(repository)
    (tmp_path / "home" / ".gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "filter.own.smudge")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(program))
    found = brought(tmp_path / "cache", pylock(tmp_path, vcs("top", repository, at)), own=str(own))
    assert "src/top.py" in files(tmp_path / "cache", found, "top")
    assert not ran.exists()


def test_a_package_in_a_folder_of_a_repository_is_read_there(tmp_path: Path, own: Path) -> None:
    package(tmp_path / "repository" / "python" / "top", "top", "2.0")
    at = commit(tmp_path / "repository")
    lock = pylock(tmp_path, vcs("top", tmp_path / "repository", at, ', subdirectory = "python/top"'))
    (built,) = brought(tmp_path / "cache", lock, own=str(own)).built
    assert isinstance(built.source, w.PackedSdist)
    assert (built.source.version, built.source.subdirectory) == ("2.0", "python/top")


def test_what_cannot_be_fetched_is_one_sentence(tmp_path: Path, own: Path) -> None:
    repository = package(tmp_path / "repository", "top")
    commit(repository)
    place = repository.as_uri()
    said = refused(tmp_path, own, vcs("top", repository, "1" * 40))
    assert said.endswith(f"top: {place} does not have the commit {'1' * 40}; run 'uv lock' again, or push the commit.")
    said = refused(tmp_path, own, vcs("top", tmp_path / "missing", "1" * 40))
    assert "top: git cannot fetch file://" in said
    assert "does not appear to be a git repository" in said
    inner = package(tmp_path / "inner", "inner")
    commit(inner)
    git(repository, "submodule", "--quiet", "add", inner.as_uri(), "vendor")
    said = refused(tmp_path, own, vcs("top", repository, commit(repository)))
    assert "top: its folder vendor is a submodule of git, which is not fetched; build its wheel" in said
    (tmp_path / "empty").mkdir()
    said = refused(tmp_path, own, vcs("top", tmp_path / "empty", commit(tmp_path / "empty")))
    assert "top: its source has neither pyproject.toml nor setup.py, so it cannot be built" in said


def test_a_server_that_asks_for_a_login_is_named_without_one(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.https://me:s3cret@127.0.0.1:9/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/")
    at = "1" * 40
    said = refused(
        tmp_path,
        own,
        f'name = "top"\nvcs = {{type = "git", url = "https://me:s3cret@example.org/x", commit-id = "{at}"}}',
    )
    assert "git cannot fetch https://example.org/x: " in said
    assert "s3cret" not in said


def test_a_folder_is_packed_without_what_tools_leave_and_a_change_is_another_package(tmp_path: Path, own: Path) -> None:
    folder = package(tmp_path / "member", "member")
    for left in (".git/config", ".venv/bin/python", "src/__pycache__/member.cpython-311.pyc", "build/lib/old.py"):
        (folder / left).parent.mkdir(parents=True, exist_ok=True)
        (folder / left).write_text("left")
    (folder / "src" / "build").mkdir()
    (folder / "src" / "build" / "data.txt").write_text("")
    (folder / "alias").symlink_to("src")
    lock = pylock(tmp_path, 'name = "member"\ndirectory = {path = "member", editable = true}')
    found = brought(tmp_path / "cache", lock, own=str(own))
    inside = ["alias", "pyproject.toml", "src/build/data.txt", "src/member.py"]
    assert files(tmp_path / "cache", found, "member") == inside
    os.utime(folder / "pyproject.toml", (1, 1))
    assert brought(tmp_path / "cache", lock, own=str(own)) == found
    (folder / "src" / "member.py").write_text("changed = 1\n")
    (changed,) = brought(tmp_path / "cache", lock, own=str(own)).built
    assert changed.source.sha256 != found.built[0].source.sha256


def test_a_folder_that_cannot_be_packed_is_one_sentence(tmp_path: Path, own: Path) -> None:
    member = 'name = "member"\ndirectory = {path = "member"}'
    assert f"member: its folder {tmp_path}/member is not on this controller" in refused(tmp_path, own, member)
    folder = package(tmp_path / "member", "member", "new")
    assert "member: the version 'new' of its pyproject.toml is not valid" in refused(tmp_path, own, member)
    (folder / "pyproject.toml").write_text(f'{BUILDS}[project]\nname = "member"\n')
    for target in ("/etc/passwd", "../../x", "src/../../.."):
        (folder / "src" / "link").symlink_to(target)
        assert "its src/link is a link that leads out of its folder" in refused(tmp_path, own, member)
        (folder / "src" / "link").unlink()


def test_a_workspace_that_real_uv_locked_brings_its_members_and_not_the_project(
    tmp_path: Path, own: Path, uv_program: tuple[Path, Path]
) -> None:
    """One git dependency, one member, one folder, one source archive in C, one extra and the default groups."""
    source = archive(own, "quick", "1.0", {"pyproject.toml": f'{BUILDS}[project]\nname = "quick"\nversion = "1.0"\n'})
    (own / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    for name in ("extra", "tested", "linted"):
        make_wheel(own, name, "1.0")
    repository = package(tmp_path / "repository", "fetched", "3.1")
    at = commit(repository)
    project = package(
        tmp_path / "project",
        "mine",
        more='requires-python = ">=3.11"\ndependencies = ["fetched", "member", "folder", "quick"]\n'
        '[project.optional-dependencies]\nmore = ["extra"]\n'
        '[dependency-groups]\ndev = ["tested"]\nlint = ["linted"]\n'
        "[tool.uv.sources]\n"
        f'fetched = {{git = "{repository.as_uri()}"}}\nmember = {{workspace = true}}\nfolder = {{path = "../folder"}}\n'
        '[tool.uv.workspace]\nmembers = ["packages/*"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{own}"]\n',
    )
    package(project / "packages" / "member", "member")
    package(tmp_path / "folder", "folder")
    subprocess.run(
        [uv_program[1], "lock", "--offline", "--no-cache", "-q"], cwd=project, check=True, stdin=subprocess.DEVNULL
    )
    found = brought(tmp_path / "cache", project / "uv.lock", "more", own=str(own))
    assert names(found) == ["extra 1.0", "tested 1.0"]
    kinds = {f"{one.source.name} {one.source.version}": type(one.source) for one in found.built}
    packed = dict.fromkeys(("fetched 3.1", "folder 1.0", "member 1.0"), w.PackedSdist)
    assert {name: kind for name, kind in kinds.items() if kind is w.PackedSdist} == packed
    assert sorted(kinds) == ["fetched 3.1", "folder 1.0", "member 1.0", "quick 1.0"]
    assert next(one.source.sha256 for one in found.built if one.source.name == "quick") == digest(source)
    assert at in (project / "uv.lock").read_text()
    # the same project as uv exports it for pip
    export = ["export", "--frozen", "--offline", "--no-cache", "-q", "--extra=more", "-o=requirements.txt"]
    subprocess.run([uv_program[1], *export], cwd=project, check=True, stdin=subprocess.DEVNULL)
    plain = brought(tmp_path / "cache", project / "requirements.txt", own=str(own))
    assert (names(plain), [one.source for one in plain.built if isinstance(one.source, w.PackedSdist)]) == (
        names(found),
        [one.source for one in found.built if isinstance(one.source, w.PackedSdist)],
    )


# --- requirements without hashes ---


def test_requirements_that_need_a_build_are_read_and_never_run(
    tmp_path: Path, own: Path, uv_program: tuple[Path, Path]
) -> None:
    (own / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    make_wheel(own, "low", "1.0")
    stated = {
        "PKG-INFO": "Metadata-Version: 2.2\nName: quick\nVersion: 1.0\nRequires-Dist: low\n",
        "pyproject.toml": f'{BUILDS}[project]\nname = "quick"\nversion = "1.0"\ndependencies = ["low"]\n',
    }
    archive(own, "quick", "1.0", stated)
    member = package(tmp_path / "member", "member")
    repository = package(tmp_path / "repository", "fetched")
    at = commit(repository)
    lines = f"quick\n-e ./member\nfetched @ git+{repository.as_uri()}\nmpi4py\n"
    found = brought(tmp_path / "cache", requirements(tmp_path, lines), own=str(own))
    assert names(found) == ["low 1.0"]
    assert [one.source.name for one in found.built] == ["fetched", "member", "quick"]
    assert found.left_out == ("mpi4py",)
    (kept,) = (tmp_path / "cache" / "locks").glob("requirements-*.txt")
    assert f"@{at}" in kept.read_text()
    assert member.as_uri() in kept.read_text()

    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\n"
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    archive(own, "hidden", "1.0", {"pyproject.toml": backend, "backend.py": code})
    archive(own, "old", "1.0", {"setup.py": code, "PKG-INFO": "Metadata-Version: 1.1\nName: old\nVersion: 1.0\n"})
    for name in ("hidden", "old"):
        with pytest.raises(w.LockError) as error:
            brought(tmp_path / "cache", requirements(tmp_path, f"{name}\n"), own=str(own))
        assert f"{name}==1.0 has no wheel for the nodes and does not state what it requires" in str(error.value)
    assert not ran.exists()


def test_requirements_that_nothing_satisfies_are_one_sentence(
    tmp_path: Path, own: Path, uv_program: tuple[Path, Path]
) -> None:
    (own / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    make_wheel(own, "top", "1.0")
    path = requirements(tmp_path, "top>=2\n")
    with pytest.raises(w.LockError) as error:
        brought(tmp_path / "cache", path, own=str(own))
    assert str(error.value) == (
        f"{path}: uv finds no versions: Because only top==1.0 is available and you require top>=2, we can conclude that"
        " your requirements are unsatisfiable. Correct the file, or the index."
    )
