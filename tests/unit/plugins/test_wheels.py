"""Wheels are found for the nodes' Python and pinned once, and every failure is a sentence; pip itself runs here."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import pip as runner
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import store
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.packages import PipFailedError
from wheel_files import make_wheel

pytestmark = pytest.mark.programs

DATA = Path(__file__).parents[2] / "data" / "pip"
# older than any Python that a controller may have, so that pip's own answer to a marker is always the wrong one
NODE = w.Target.of("rocky-9-x86_64-glibc2.34-py3.9")


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own pip configuration out of the tests."""
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")


def lock(store: w.WheelStore, *requirements: str, target: w.Target = NODE) -> list[w.Wheel]:
    parsed = w.parse_requirements(requirements, "python_env_requirements")
    return store.lock("python_env", target, parsed, "python_env_requirements")


def names(found: list[w.Wheel]) -> list[str]:
    return [f"{wheel.name} {wheel.version}" for wheel in found]


@pytest.mark.parametrize(
    "text",
    [
        "-r other.txt",
        "--index-url=x",
        "numpy; rm -rf /",
        "numpy && reboot",
        "$(id)",
        "../evil",
        "a b",
        "",
        "numpy\nscipy",
    ],
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(w.WheelError, match=r"python_env_requirements: .* is not a requirement"):
        w.parse_requirements([text], "python_env_requirements")


def test_an_address_is_refused() -> None:
    with pytest.raises(w.WheelError, match="names an address"):
        w.parse_requirements(["numpy @ https://example.org/numpy.whl"], "python_env_requirements")


def test_the_newest_c_library_that_fits_comes_first() -> None:
    tags = w.Target.of("debian-12-x86_64-glibc2.36-py3.11-cuda12").tags()
    assert tags[0] == "manylinux_2_36_x86_64"
    assert tags.index("manylinux_2_17_x86_64") + 1 == tags.index("manylinux2014_x86_64")
    assert not any(tag.startswith("manylinux_2_37") for tag in tags)
    assert "manylinux_2_16_aarch64" not in w.Target.of("ubuntu-24-aarch64-glibc2.39-py3.12").tags()


def test_a_platform_without_python_is_refused() -> None:
    with pytest.raises(w.WheelError, match="debian-12"):
        w.Target.of("debian-12")


@pytest.mark.parametrize("numbers", ["glibc2.9999999999-py3.11", "glibc2.36-py3.9999999999"])
def test_a_platform_with_numbers_that_nobody_counts_to_is_refused(numbers: str) -> None:
    """The tags of wheels count down from them, and so does pip."""
    with pytest.raises(w.WheelError, match="does not name"):
        w.Target.of(f"debian-12-x86_64-{numbers}")


def test_markers_are_judged_as_the_node_would(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0", 'old; python_version < "3.10"', 'new; python_version >= "3.10"')
    make_wheel(folder, "old", "2.0", "deep>=1")
    make_wheel(folder, "deep", "1.5")
    assert names(lock(w.WheelStore(tmp_path / "cache", str(folder)), "top")) == ["deep 1.5", "old 2.0", "top 1.0"]


def test_what_pip_left_out_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a pip that hides its markers elsewhere judges by its own Python
    monkeypatch.setattr(runner, "_RUN_PIP", runner._RUN_PIP.replace('"default_environment", None', '"elsewhere", None'))  # noqa: SLF001
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0", 'old; python_version < "3.10"', "many[more]")
    make_wheel(folder, "old", "2.0")
    make_wheel(folder, "many", "1.0", 'extra1; extra == "more" and python_version < "3.10"', 'extra2; extra == "other"')
    make_wheel(folder, "extra1", "1.0")
    found = lock(w.WheelStore(tmp_path / "cache", str(folder)), "top")
    assert names(found) == ["extra1 1.0", "many 1.0", "old 2.0", "top 1.0"]


def test_a_requirement_for_another_python_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    found = lock(w.WheelStore(tmp_path / "cache", str(folder)), "top", 'absent; python_version >= "3.10"')
    assert names(found) == ["top 1.0"]


def test_a_lock_is_asked_for_once(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    first = lock(w.WheelStore(tmp_path / "cache", str(folder)), "top")
    make_wheel(folder, "top", "2.0")
    # neither the folder nor an index is looked at again
    assert lock(w.WheelStore(tmp_path / "cache"), "top") == first
    assert names(lock(w.WheelStore(tmp_path / "cache", str(folder)), "top>1")) == ["top 2.0"]


def choose(store: w.WheelStore, *alternatives: str, base: tuple[str, ...] = ("top",)) -> list[w.Wheel]:
    choice = w.Choice.of([[text] for text in alternatives], "python_env_framework_version")
    return store.lock("python_env", NODE, w.parse_requirements(base, "x"), "python_env_requirements", choice)


def test_the_best_that_there_is_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    make_wheel(folder, "frame", "2.0")
    store = w.WheelStore(tmp_path / "cache", str(folder))
    fallen = choose(store, "frame==2.0+cpu", "frame==2.0")
    assert names(fallen) == ["frame 2.0", "top 1.0"]
    make_wheel(folder, "frame", "2.0+cpu")
    assert choose(store, "frame==2.0+cpu", "frame==2.0") == fallen, "a lock is kept"
    assert names(choose(store, "frame==2.0,!=2.0+cpu")) == ["frame 2.0", "top 1.0"], "another question, another lock"
    other = w.WheelStore(tmp_path / "other", str(folder))
    assert names(choose(other, "frame==2.0+cpu", "frame==2.0")) == ["frame 2.0+cpu", "top 1.0"]


def test_which_way_was_taken_is_seen_in_the_lock() -> None:
    choice = w.Choice.of([["frame==2.0+cpu"], ["frame==2.0"]], "x")
    assert choice.taken([w.Wheel("frame", "2.0+cpu", "", "")]) == 0
    assert choice.taken([w.Wheel("frame", "2.0", "", "")]) == 1
    assert w.NO_CHOICE.taken([]) == -1


def test_an_index_that_is_away_is_no_reason_to_take_what_is_worse(tmp_path: Path) -> None:
    make_wheel(tmp_path / "given", "frame", "2.0")
    choose(w.WheelStore(tmp_path / "cache", str(tmp_path / "given")), "frame==2.0", base=())
    away = w.WheelStore(tmp_path / "cache")  # frame 2.0 is cached now, and the index does not answer
    with pytest.raises(w.WheelError, match=r"did not answer while looking for frame==2\.0\+cpu"):
        choose(away, "frame==2.0+cpu", "frame==2.0", base=())


def test_an_index_among_others_that_is_away_may_be_the_one_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(arguments: list[str], *_more: object) -> None:
        (wanted,) = [
            Path(argument.partition("=")[2]) for argument in arguments if argument.startswith("--requirement=")
        ]
        assert "frame==2.0+cpu" in wanted.read_text(encoding="utf-8"), "nothing worse is asked for"
        said = "WARNING: Retrying (Retry(total=0, ...\nERROR: Could not find a version that satisfies the requirement"
        nothing = "frame==2.0+cpu (from versions: 2.0)\nERROR: No matching distribution found for frame==2.0+cpu"
        raise PipFailedError(f"{said} {nothing}\n")

    monkeypatch.setattr(store, "run_pip", pip)
    with pytest.raises(w.WheelError, match=r"of frame==2\.0\+cpu; .*One index did not answer"):
        choose(w.WheelStore(tmp_path / "cache"), "frame==2.0+cpu", "frame==2.0", base=())


def test_a_package_that_the_best_one_lacks_is_no_reason_to_take_what_is_worse(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "frame", "2.0+cpu", "gone")
    make_wheel(folder, "frame", "2.0")
    with pytest.raises(w.WheelError, match=r"python_env_requirements: the index offers no wheel .* of gone"):
        choose(w.WheelStore(tmp_path / "cache", str(folder)), "frame==2.0+cpu", "frame==2.0", base=())


def test_a_framework_that_does_not_exist_for_the_nodes_is_named_with_its_variable(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    for version in ("1.8", "1.9", "1.10"):
        make_wheel(folder, "frame", version)
    make_wheel(folder, "frame", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    sentence = (
        r"python_env_framework_version: the index offers no wheel for Python 3\.9 on x86_64 with glibc 2\.34 .* of"
        r" frame==2\.0; the newest that fit are 1\.8, 1\.9, 1\.10\..* name it in python_env_wheel_dir\.$"
    )
    with pytest.raises(w.WheelError, match=sentence):
        choose(w.WheelStore(tmp_path / "cache", str(folder)), "frame==2.0+cpu", "frame==2.0")


def test_a_damaged_lock_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    store = w.WheelStore(tmp_path / "cache", str(folder))
    first = lock(store, "top")
    (path,) = (tmp_path / "cache" / "locks").glob("*.json")
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert lock(store, "top") == first
    assert json.loads(path.read_bytes())["wheels"]


def test_a_wheel_that_was_changed_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    original = make_wheel(folder, "top", "1.0").read_bytes()
    store = w.WheelStore(tmp_path / "cache", str(folder))
    found = lock(store, "top")
    (store.wheels / found[0].filename).write_bytes(b"something else")
    (path,) = store.files(found, NODE, "python_env_requirements")
    assert path.read_bytes() == original


def test_another_file_of_the_same_name_is_not_taken_for_the_locked_one(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    store = w.WheelStore(tmp_path / "cache", str(folder))
    found = lock(store, "top")
    (store.wheels / found[0].filename).unlink()
    make_wheel(folder, "top", "1.0", "tampered")
    with pytest.raises(w.WheelError, match=r"top==1.0 is not the one that was pinned"):
        store.files(found, NODE, "python_env_requirements")
    assert not (store.wheels / found[0].filename).exists()


def test_an_index_that_is_away_is_not_missed_where_the_wheels_are_cached(tmp_path: Path) -> None:
    store = w.WheelStore(tmp_path / "cache")
    make_wheel(tmp_path / "given", "top", "1.0")
    lock(w.WheelStore(tmp_path / "cache", str(tmp_path / "given")), "top")
    assert names(lock(store, "top==1.0")) == ["top 1.0"]


def test_an_index_that_is_away_is_named_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(w.WheelError, match=r"did not answer while looking for top.*python_env_wheel_dir"):
        lock(w.WheelStore(tmp_path / "cache"), "top")


def test_a_package_without_a_fitting_wheel_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0", "native")
    make_wheel(folder, "native", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    with pytest.raises(w.WheelError, match=r"no wheel for Python 3\.9 on x86_64 with glibc 2\.34 .* of native"):
        lock(w.WheelStore(tmp_path / "cache", str(folder)), "top")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(w.WheelError, match=f"{tmp_path}/nowhere is not on this controller"):
        w.WheelStore(tmp_path, str(tmp_path / "nowhere"))


def make_sdist(folder: Path, name: str, version: str) -> tuple[Path, str]:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{name}-{version}/setup.py")
        text = f"raise SystemExit('{name} was run on the controller')\n".encode()
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_source_archive_from_a_folder_is_verified_and_not_run(tmp_path: Path) -> None:
    path, sha256 = make_sdist(tmp_path / "given", "top", "1.0")
    store = w.WheelStore(tmp_path / "cache", str(tmp_path / "given"))
    got = store.sdist(w.Sdist("top", "1.0", sha256), "top_sha256")
    assert got.read_bytes() == path.read_bytes()
    path.unlink()
    assert w.WheelStore(tmp_path / "cache").sdist(w.Sdist("top", "1.0", sha256), "top_sha256") == got


def simple_index(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Make an index with one source archive; returns its sha256."""
    place = folder / name.replace("_", "-")
    place.mkdir(parents=True)
    path = place / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inner}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    (place / "index.html").write_text(f'<a href="{path.name}#sha256={sha256}">{path.name}</a>\n', encoding="utf-8")
    return sha256


_RAN = "import os, pathlib\npathlib.Path(os.environ['RAN']).write_text('it ran')\n"


@pytest.mark.parametrize("name", ["top", "top_of-all"])
@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": '[build-system]\nrequires = ["lib"]\nbuild-backend = "backend"\n'},  # of the index, unpinned
        {
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
            "own.py": _RAN,
        },
        {"setup.py": _RAN, "PKG-INFO": "Metadata-Version: 2.1\nName: another\nVersion: 7\n"},
    ],
)
def test_neither_a_source_archive_of_an_index_nor_what_builds_it_runs_on_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], name: str
) -> None:
    index = tmp_path / "simple"
    sha256 = simple_index(index, name, "1.0", files)
    (index / "lib").mkdir()
    made = make_wheel(index / "lib", "lib", "1.0")
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("backend.py", _RAN)
    (index / "lib" / "index.html").write_text(f'<a href="{made.name}">{made.name}</a>\n', encoding="utf-8")
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{index}")
    cache = tmp_path / "cache"
    got = w.WheelStore(cache).sdist(w.Sdist(name, "1.0", sha256), "top_sha256")
    assert hashlib.sha256(got.read_bytes()).hexdigest() == sha256
    assert not (tmp_path / "ran").exists()
    assert list((cache / "wheels").iterdir()) == []


def test_a_source_archive_with_another_sum_is_refused_before_it_is_run(tmp_path: Path) -> None:
    make_sdist(tmp_path / "given", "top", "1.0")
    store = w.WheelStore(tmp_path / "cache", str(tmp_path / "given"))
    with pytest.raises(w.WheelError, match=r"top==1.0 is not the one that was pinned .*top_sha256"):
        store.sdist(w.Sdist("top", "1.0", "0" * 64), "top_sha256")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "top", "version": "1.0"}, "no known sha256"),
        ({"name": "top", "version": "1.0", "sha256": "abc"}, "no known sha256"),
        ({"name": "top", "version": "-r x", "sha256": "0" * 64}, "not the name and version"),
    ],
)
def test_a_source_archive_needs_a_name_a_version_and_a_sum(entry: dict[str, str], message: str) -> None:
    with pytest.raises(w.WheelError, match=message):
        w.Sdist.of(entry, "top_sha256")


@pytest.mark.parametrize(
    ("captured", "words"),
    [
        ("no_wheel", ["no wheel for Python 3.9", "of horovod==0.28.1.", "python_env_wheel_dir"]),
        ("no_wheel_version", ["of numpy==2.5.5; the newest that fit are 2.4.4, 2.4.5, 2.4.6"]),
        ("conflict", ["exclude each other", "pandas 2.2.3 depends on numpy", "of numpy no wheel for Python 3.9"]),
        ("hash", ["tabulate==0.9.0 is not the one that was pinned"]),
        ("unreachable", ["did not answer while looking for numpy", "python_env_wheel_dir"]),
    ],
)
def test_what_pip_says_becomes_one_line(captured: str, words: list[str]) -> None:
    output = (DATA / f"{captured}.txt").read_text(encoding="utf-8")
    sentence = w.explain(output, NODE, "python_env_requirements")
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    if captured == "hash":
        assert max(len(one.split()) for one in sentence.split(". ")) <= 25


def test_a_build_gets_its_wheels_and_source_under_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_wheel(folder, "top", "1.0")
    _, sha256 = make_sdist(folder, "lib", "1.0")
    common = {"wheel_dir": str(folder), "variable": "python_env_requirements"}
    wanted = {"name": "x", "platform": NODE.platform, "requirements": ["top"], **common}
    cache = tmp_path / "cache"
    assert [dest for _, dest in w.bring({"wheels": wanted, "dest": "in"}, cache)] == ["in/top-1.0-py3-none-any.whl"]
    assert [dest for _, dest in w.bring({"wheels": wanted, "dest": "in", "unpack": True}, cache)] == ["in"]
    pinned = [asdict(wheel) for wheel in lock(w.WheelStore(cache, str(folder)), "top")]
    entry = {"name": "x", "platform": NODE.platform, "pinned": pinned, **common}
    assert [dest for _, dest in w.bring({"wheels": entry, "dest": "in"}, cache)] == ["in/top-1.0-py3-none-any.whl"]
    source = {"name": "lib", "version": "1.0", "sha256": sha256, **common}
    assert [dest for _, dest in w.bring({"sdist": source, "dest": "source"}, cache)] == ["source"]


@pytest.mark.programs
def test_pip_runs_where_the_c_library_has_no_prctl_as_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = runner._RUN_PIP.replace("sys.platform", "'darwin'").replace("prctl", "absent_on_macos")  # noqa: SLF001
    assert program != runner._RUN_PIP  # noqa: SLF001
    monkeypatch.setattr(runner, "_RUN_PIP", program)
    runner.run_pip(["--version"], {}, str(tmp_path))


class _Endless(http.server.BaseHTTPRequestHandler):
    """An index whose page does not end: in large blocks, or a byte at a time."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        slow = self.path.startswith("/slow")
        with contextlib.suppress(OSError):
            for _ in range(1000):
                self.wfile.write(b"<" if slow else b"<a>" * (1 << 20))
                time.sleep(0.1 if slow else 0)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


@pytest.fixture
def endless() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("path", "words"), [("fast", "needed more than 256 MiB"), ("slow", "did not end within 6 s")])
def test_an_index_page_without_end_neither_fills_the_memory_nor_holds_the_run(
    tmp_path: Path, endless: str, monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    monkeypatch.setattr(runner, "_MOST_MEMORY_MIB", 256)
    monkeypatch.setattr(runner, "_PIP_TIMEOUT_S", 6 if path == "slow" else 60)
    argv = ["download", "--no-deps", f"--index-url={endless}/{path}", f"--dest={tmp_path}", "some-package"]
    began = time.monotonic()
    with pytest.raises(w.WheelError, match=words):
        runner.run_pip(argv, {}, str(tmp_path))
    assert time.monotonic() - began < 30


def test_words_of_pip_and_files_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_RUN_PIP", "print('x' * (2 << 20))")
    monkeypatch.setattr(runner, "_MOST_OUTPUT_MIB", 1)
    with pytest.raises(w.WheelError, match="wrote more than 1 MiB"):
        runner.run_pip([], {}, str(tmp_path))
    monkeypatch.undo()
    with zipfile.ZipFile(make_wheel(tmp_path / "given", "top", "1.0"), "a") as archive:
        archive.writestr("large", b"x" * (2 << 20))
    monkeypatch.setattr(runner, "_MOST_FILE_MIB", 1)
    argv = ["download", "--no-index", f"--find-links={tmp_path / 'given'}", f"--dest={tmp_path / 'out'}", "top"]
    with pytest.raises(w.WheelError, match="a file of more than 1 MiB"):
        runner.run_pip(argv, {}, str(tmp_path))
