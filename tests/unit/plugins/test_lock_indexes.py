"""Private indexes that uv or pip of the user know on the controller; real uv and pip ask a server with logins."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import indexes
from user_locks import LOGIN, NODE, PYTHON, digest, names, requirements, serving
from wheel_files import make_wheel

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("without_an_index")]

USER, PASSWORD = LOGIN.split(":")
INDEX = '[[tool.uv.index]]\nname = "our-own"\nurl = "{}/private/simple"\ndefault = true\n'
PROJECT = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["top"]\n'


@pytest.fixture
def project(tmp_path: Path, uv_program: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and the packages of a private index."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PIP_INDEX_URL")
    for name in ("top", "low"):
        folder = tmp_path / "private" / "simple" / name
        folder.mkdir(parents=True)
        wheel = make_wheel(folder, name, "1.0", *(["low"] if name == "top" else []))
        (folder / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest(wheel)}">{wheel.name}</a>\n')
    (tmp_path / "private" / "simple" / "uv").mkdir()
    (tmp_path / "private" / "simple" / "uv" / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def address(tmp_path: Path, project: Path) -> Iterator[str]:
    assert project
    with serving(tmp_path) as found:
        yield found


def logged_in(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    monkeypatch.setenv("UV_INDEX_OUR_OWN_USERNAME", USER)
    monkeypatch.setenv("UV_INDEX_OUR_OWN_PASSWORD", password)


def brought(path: Path) -> w.LockedEnvironment:
    store = w.WheelStore(path.parents[1] / "cache", project=path.parent)
    return w.locked_environment(store, path, w.Asked(), NODE, PYTHON)


def hashed(project: Path) -> Path:
    wheel = project.parent / "private" / "simple" / "top" / "top-1.0-py3-none-any.whl"
    return requirements(project, f"top==1.0 --hash=sha256:{digest(wheel)}\n")


def kept(folder: Path) -> str:
    """Return all texts of the cache."""
    return "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".txt"))


def test_pip_asks_the_index_that_uv_knows_with_its_login(
    project: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text(PROJECT + INDEX.format(address))
    logged_in(monkeypatch)
    found = brought(hashed(project))
    assert names(found) == ["top 1.0"]
    assert PASSWORD not in kept(project.parent / "cache") + str(found)


def test_a_lock_of_uv_from_a_private_index_needs_nothing_of_pip(
    project: Path, address: str, uv_program: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text(PROJECT + INDEX.format(address))
    logged_in(monkeypatch)
    argv = [str(uv_program[1]), "lock", "--no-cache", "-q"]
    subprocess.run(argv, cwd=project, check=True, stdin=subprocess.DEVNULL)
    assert PASSWORD not in (project / "uv.lock").read_text()
    assert names(brought(project / "uv.lock")) == ["low 1.0", "top 1.0"]


@pytest.mark.parametrize("asked", ["uv", "pip", "variable", "netrc"])
def test_requirements_without_hashes_are_chosen_from_the_index_of_uv_or_of_pip(
    project: Path, address: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    with_login = f"{address.replace('http://', f'http://{LOGIN}@')}/private/simple"
    if asked == "uv":
        (project / "uv.toml").write_text(INDEX.format(address).replace("tool.uv.", ""))
        logged_in(monkeypatch)
    elif asked == "pip":
        monkeypatch.setenv("PIP_INDEX_URL", with_login)
    elif asked == "variable":
        monkeypatch.setenv("UV_DEFAULT_INDEX", with_login)
    else:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/private/simple")
        (project.parent / "home").mkdir()
        netrc = project.parent / "home" / ".netrc"
        netrc.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
        netrc.chmod(0o600)
    found = brought(requirements(project, "top\n"))
    assert names(found) == ["low 1.0", "top 1.0"]
    assert PASSWORD not in kept(project.parent / "cache") + str(found)


@pytest.mark.parametrize("kind", ["hashed", "loose"])
def test_an_index_that_refuses_the_login_is_named_without_it(
    project: Path, address: str, uv_program: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # uv itself comes from elsewhere
    wheels = project.parent / "cache" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (project / "pyproject.toml").write_text(PROJECT + INDEX.format(address))
    logged_in(monkeypatch, "wr0ng")
    with pytest.raises(w.WheelError) as refused:
        brought(hashed(project) if kind == "hashed" else requirements(project, "top\n"))
    said = str(refused.value)
    assert "127.0.0.1" in said
    assert "refuses" in said
    assert "UV_INDEX_NAME_USERNAME" in said
    assert "wr0ng" not in said
    assert "\n" not in said


def test_what_counts_first_is_what_uv_takes_first(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "top" / "inner"
    (home / ".config" / "uv").mkdir(parents=True)
    project.mkdir(parents=True)
    (home / ".config" / "uv" / "uv.toml").write_text(
        'index-url = "https://user.example.org"\nextra-index-url = ["https://more.example.org"]\n'
    )
    (tmp_path / "top" / "pyproject.toml").write_text(
        '[[tool.uv.index]]\nname = "a.b"\nurl = "https://a.example.org"\n'
        '[[tool.uv.index]]\nurl = "https://flat.example.org"\nformat = "flat"\n'
        '[[tool.uv.index]]\nurl = "https://project.example.org"\ndefault = true\n'
        '[tool.uv]\nfind-links = ["wheels"]\n'
    )
    known = {"HOME": str(home), "UV_INDEX": "c=https://c.example.org", "UV_INDEX_C_PASSWORD": "p@ss word"}
    found = indexes.of_uv(project, {**known, "UV_INDEX_A_B_USERNAME": "me"})
    assert found.default == "https://project.example.org"
    assert found.more == (
        "https://:p%40ss%20word@c.example.org",
        "https://me:@a.example.org",
        "https://more.example.org",
    )
    assert found.links == ("https://flat.example.org", str(tmp_path / "top" / "wheels"))
    assert "example.org" not in repr(found), "a login is in no log"
    assert indexes.of_uv(None, known).default == "https://user.example.org"
    assert indexes.of_uv(project, {"UV_NO_CONFIG": "1", "HOME": str(home)}) == indexes.Indexes()
    (project / "uv.toml").write_text("not TOML [")
    assert indexes.of_uv(project, {"HOME": "/nonexistent"}).default == "https://project.example.org"


def test_a_choice_without_hashes_asks_no_second_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example.org")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example.org")
    assert indexes.for_pip(tmp_path, pinned=False) == {}, "pip was told its own"
    assert indexes.for_pip(tmp_path, pinned=True) == {"PIP_EXTRA_INDEX_URL": "https://uv.example.org"}
    monkeypatch.delenv("PIP_INDEX_URL")
    assert indexes.for_pip(tmp_path, pinned=False) == {"PIP_INDEX_URL": "https://uv.example.org"}
    assert "UV_DEFAULT_INDEX" not in indexes.for_uv(tmp_path)
