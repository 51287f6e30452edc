"""The locks that ship with the collection are used first, and an index that has other files is refused."""

from __future__ import annotations

import hashlib
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import wheel_locks as tool
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import indexes, shipped
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import pip as runner
from wheel_files import make_wheel

NODE = w.Target.of("debian-12-x86_64-glibc2.36-py3.11")
VARIABLE = "python_env_requirements"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_words: Any) -> None:
        """Keep the requests to themselves."""


@dataclass
class Index:
    """A package index on this machine: a folder of wheels, served as pip's simple index."""

    folder: Path
    server: http.server.ThreadingHTTPServer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def offer(self, name: str, version: str, *requires: str, tag: str = "py3-none-any") -> w.Wheel:
        path = make_wheel(self.folder / "files", name, version, *requires, tag=tag)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.publish()
        return w.Wheel(name, version, path.name, digest)

    def withdraw(self, wheel: w.Wheel) -> None:
        (self.folder / "files" / wheel.filename).unlink()
        self.publish()

    def publish(self) -> None:
        shutil.rmtree(self.folder / "simple", ignore_errors=True)
        for path in (self.folder / "files").iterdir():
            page = self.folder / "simple" / path.name.partition("-")[0] / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            with page.open("a", encoding="utf-8") as out:
                out.write(f'<a href="/files/{path.name}#sha256={digest}">{path.name}</a>\n')


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "index"
    (folder / "files").mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = Index(folder, server)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", found.address)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield found
    server.shutdown()
    server.server_close()


def shipped_lock(*wheels: w.Wheel, asks: list[str], target: w.Target = NODE) -> dict[str, Any]:
    asked = tool.Asked.of("x", asks)
    return tool.document(target, asked, wheels)


def ask(store: w.WheelStore, *requirements: str, first_of: list[list[str]] | None = None) -> list[w.Wheel]:
    choice = w.Choice.of(first_of or [], "python_env_framework_version")
    return store.lock("python_env", NODE, w.parse_requirements(requirements, VARIABLE), VARIABLE, choice)


def names(wheels: list[w.Wheel]) -> list[str]:
    return [f"{wheel.name} {wheel.version}" for wheel in wheels]


# --- the locks come first -------------------------------------------------------------------------------------------


@pytest.mark.programs
def test_a_lock_of_the_collection_decides_and_not_the_index(index: Index, tmp_path: Path) -> None:
    pinned = index.offer("top", "1.0")
    index.offer("top", "2.0")
    locks = [shipped_lock(pinned, asks=["top"])]
    store = w.WheelStore(tmp_path / "cache", shipped=locks)
    assert ask(store, "top") == [pinned]
    assert store.notes == []
    index.withdraw(pinned)
    assert ask(w.WheelStore(tmp_path / "cache", shipped=locks), "top") == [pinned], "the index is asked once"


@pytest.mark.programs
def test_a_user_who_asks_for_more_gets_what_the_index_offers(index: Index, tmp_path: Path) -> None:
    pinned = index.offer("top", "1.0")
    index.offer("more", "1.0")
    store = w.WheelStore(tmp_path / "cache", shipped=[shipped_lock(pinned, asks=["top"])])
    assert names(ask(store, "top", "more")) == ["more 1.0", "top 1.0"]
    assert store.notes == [], "a question of the user's own was never the collection's"


@pytest.mark.parametrize(
    ("platform", "fits"),
    [
        ("debian-12-x86_64-glibc2.36-py3.11", "2.36"),
        ("new-1-x86_64-glibc2.40-py3.11", "2.36"),
        ("newer-1-x86_64-glibc2.100-py3.11", "2.41"),
        ("old-1-x86_64-glibc2.35-py3.11", None),
        ("debian-12-aarch64-glibc2.36-py3.11", None),
        ("debian-13-x86_64-glibc2.41-py3.13", None),
    ],
)
def test_a_lock_holds_for_its_python_and_machine_and_each_newer_c_library(platform: str, fits: str | None) -> None:
    locks = []
    for glibc in ("2.41", "2.36"):
        made_for = w.Target.of(f"x-x86_64-glibc{glibc}-py3.11")
        locks.append(shipped_lock(w.Wheel("top", glibc, "", ""), asks=["top"], target=made_for))
    (answer,) = shipped.answers(locks, w.Target.of(platform), w.parse_requirements(["top"], "x"), w.NO_CHOICE)
    assert (answer.wheels[0].version if answer.wheels else None) == fits


# --- an index that lacks a file -------------------------------------------------------------------------------------


@pytest.mark.programs
def test_a_file_that_the_index_lacks_leads_to_the_next_alternative(index: Index, tmp_path: Path) -> None:
    top, gone, plain = index.offer("top", "1.0"), index.offer("frame", "2.0+cpu"), index.offer("frame", "2.0")
    index.withdraw(gone)
    locks = [shipped_lock(gone, top, asks=["top", "frame==2.0+cpu"])]
    locks += [shipped_lock(plain, top, asks=["top", "frame==2.0"])]
    store = w.WheelStore(tmp_path / "cache", shipped=locks)
    assert ask(store, "top", first_of=[["frame==2.0+cpu"], ["frame==2.0"]]) == [plain, top]
    assert store.notes == []


@pytest.mark.programs
@pytest.mark.parametrize("rebuilt", [False, True], ids=["missing", "under another name"])
def test_after_the_last_alternative_the_index_chooses_with_one_warning(
    index: Index, tmp_path: Path, *, rebuilt: bool
) -> None:
    top, gone = index.offer("top", "1.0"), index.offer("deep", "1.0")
    index.withdraw(gone)
    index.offer("deep", "1.0" if rebuilt else "1.1", tag="1-py3-none-any" if rebuilt else "py3-none-any")
    locks = [shipped_lock(gone, top, asks=["deep", "top"])]
    store = w.WheelStore(tmp_path / "cache", shipped=locks)
    found = ask(store, "deep", "top")
    assert names(found) == ["deep 1.0" if rebuilt else "deep 1.1", "top 1.0"]
    (note,) = store.notes
    assert f"does not pin deep {found[0].version} for Python 3.11 on x86_64 with glibc 2.36" in note
    assert "top" not in note.partition(" for ")[0]
    again = w.WheelStore(tmp_path / "cache", shipped=locks)
    index.server.shutdown()
    assert (ask(again, "deep", "top"), again.notes) == (found, []), "the warning comes once, and so does the question"


@pytest.mark.programs
def test_an_alternative_without_a_lock_gets_the_versions_that_the_collection_pins(index: Index, tmp_path: Path) -> None:
    deep, plain = index.offer("deep", "1.0"), index.offer("frame", "2.0", "deep")
    index.offer("deep", "1.1")
    index.offer("frame", "2.0+cpu", "deep")
    store = w.WheelStore(tmp_path / "cache", shipped=[shipped_lock(deep, plain, asks=["frame==2.0"])])
    found = ask(store, first_of=[["frame==2.0+cpu"], ["frame==2.0"]])
    assert names(found) == ["deep 1.0", "frame 2.0+cpu"]
    (note,) = store.notes
    assert "does not pin frame 2.0+cpu for" in note


@pytest.mark.programs
def test_an_older_lock_of_the_cache_stays_where_the_index_lacks_the_files(index: Index, tmp_path: Path) -> None:
    index.offer("top", "0.9")
    before = ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top")
    index.offer("top", "1.1")
    store = w.WheelStore(
        tmp_path / "cache", shipped=[shipped_lock(w.Wheel("top", "1.0", "x.whl", "0" * 64), asks=["top"])]
    )
    assert ask(store, "top") == before
    assert "does not pin top 0.9" in store.notes[0]


@pytest.mark.programs
def test_a_new_lock_of_the_collection_replaces_the_one_in_the_cache(index: Index, tmp_path: Path) -> None:
    old, new = index.offer("top", "1.0"), index.offer("top", "1.1")
    for pinned in (old, new):
        store = w.WheelStore(tmp_path / "cache", shipped=[shipped_lock(pinned, asks=["top"])])
        assert ask(store, "top") == [pinned]


@pytest.mark.programs
def test_an_index_that_does_not_answer_leads_to_an_older_lock_or_to_an_error(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer("top", "0.9")
    before = ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    locks = [shipped_lock(w.Wheel("top", "1.0", "top-1.0-py3-none-any.whl", "0" * 64), asks=["top"])]
    store = w.WheelStore(tmp_path / "cache", shipped=locks)
    assert ask(store, "top") == before
    assert "older lock" in store.notes[0]
    with pytest.raises(w.WheelError, match="did not answer"):
        ask(w.WheelStore(tmp_path / "empty", shipped=locks), "top")


# --- an index that has another file ---------------------------------------------------------------------------------


@pytest.mark.programs
def test_a_file_with_another_hash_is_refused_and_nothing_else_is_taken(index: Index, tmp_path: Path) -> None:
    pinned = index.offer("frame", "2.0+cpu")
    plain = index.offer("frame", "2.0")
    index.offer("frame", "2.0+cpu", "tampered")
    locks = [shipped_lock(pinned, asks=["frame==2.0+cpu"]), shipped_lock(plain, asks=["frame==2.0"])]
    store = w.WheelStore(tmp_path / "cache", shipped=locks)
    with pytest.raises(w.WheelError) as caught:
        ask(store, first_of=[["frame==2.0+cpu"], ["frame==2.0"]])
    assert re.search(r"frame-2\.0\+cpu-py3-none-any\.whl is not the file that this collection pins", str(caught.value))
    assert VARIABLE in str(caught.value)
    assert not list((tmp_path / "cache" / "locks").glob("*.json"))


@pytest.mark.programs
def test_a_question_of_the_users_own_does_not_bring_another_file_either(index: Index, tmp_path: Path) -> None:
    pinned = index.offer("top", "1.0")
    index.offer("top", "1.0", "more")
    index.offer("more", "1.0")
    store = w.WheelStore(tmp_path / "cache", shipped=[shipped_lock(pinned, asks=["top"])])
    with pytest.raises(w.WheelError, match=r"top-1\.0-py3-none-any\.whl is not the file that this collection pins"):
        ask(store, "top", "more")
    assert not (store.wheels / pinned.filename).exists()


@pytest.mark.programs
def test_a_folder_of_the_user_decides_itself(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    path = make_wheel(folder, "top", "1.0")
    pinned = w.Wheel("top", "1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    make_wheel(folder, "top", "2.0")
    locks = [shipped_lock(pinned, asks=["top"])]
    assert ask(w.WheelStore(tmp_path / "cache", str(folder), shipped=locks), "top") == [pinned], (
        "the pinned file is there"
    )
    make_wheel(folder, "top", "1.0", "more")
    make_wheel(folder, "more", "1.0")
    store = w.WheelStore(tmp_path / "other", str(folder), shipped=locks)
    assert names(ask(store, "top")) == ["top 2.0"]
    assert store.notes == []


# --- a second index -------------------------------------------------------------------------------------------------


@pytest.mark.programs
@pytest.mark.parametrize("way", ["environment", "file", "find-links"])
def test_a_second_remote_index_is_refused_where_the_index_chooses(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    pinned = index.offer("top", "1.0")
    index.offer("more", "1.0")
    other = "https://user:secret@other.example/simple"
    if way == "environment":
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file:///srv/wheels {other}")
    elif way == "find-links":
        monkeypatch.setenv("PIP_FIND_LINKS", other)
    else:
        (tmp_path / "pip.conf").write_text(f"[global]\nextra-index-url =\n    {other}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    store = w.WheelStore(tmp_path / "cache", shipped=[])
    with pytest.raises(w.WheelError) as caught:
        ask(store, "top", "more")
    sentence = str(caught.value)
    for words in ("other.example", "dependency confusion", "one index-url", "python_env_wheel_dir"):
        assert words in sentence
    assert "secret" not in sentence
    assert not list((tmp_path / "cache").rglob("*.whl"))
    # where every file is pinned by its hash, a second index can offer nothing else
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index.address} {index.address}")
    assert ask(w.WheelStore(tmp_path / "pinned", shipped=[shipped_lock(pinned, asks=["top"])]), "top") == [pinned]


@pytest.mark.programs
def test_folders_of_the_controller_are_no_second_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer("top", "1.0")
    make_wheel(tmp_path / "own", "more", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "own"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file://{tmp_path}/simple")
    assert names(ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top", "more")) == ["more 1.0", "top 1.0"]


@pytest.mark.parametrize(
    ("configuration", "hosts"),
    [
        ("", []),
        ("global.index-url='https://one.example/simple'", []),
        ("global.extra-index-url='https://two.example/simple'", ["extra-index-url on two.example"]),
        ("install.extra-index-url='https://two.example/simple'", []),
        ("download.extra-index-url='http://two.example:8080/a\\nhttps://b.example'", ["two.example", "b.example"]),
        ("global.extra-index-url='https://two.example'\n:env:.extra-index-url='file:///srv'", []),
        ("global.extra-index-url='https://two.example'\n:env:.extra-index-url=''", ["two.example"]),
        ("global.find-links='/srv/wheels https://three.example/'", ["find-links on three.example"]),
    ],
)
def test_what_pip_would_ask_beside_its_index(configuration: str, hosts: list[str]) -> None:
    found = runner.more_indexes(indexes.pip_values(configuration))
    assert len(found) == len(hosts)
    assert all(host in text for host, text in zip(hosts, found, strict=True))


# --- a mirror that answers with a page of HTML ----------------------------------------------------------------------

SIGN_IN = '<!doctype html><html><body><h1>Sign in</h1><a href="/login">Sign in</a></body></html>'


@pytest.mark.programs
def test_a_login_page_instead_of_the_index_is_named_and_leads_to_nothing_worse(index: Index, tmp_path: Path) -> None:
    frame = index.offer("frame", "2.0")
    (index.folder / "simple" / "top").mkdir()
    (index.folder / "simple" / "top" / "index.html").write_text(SIGN_IN, encoding="utf-8")
    with pytest.raises(w.WheelError) as refused:
        ask(w.WheelStore(tmp_path / "cache", shipped=[]), first_of=[["top==1.0"], ["frame==2.0"]])
    assert "on 127.0.0.1 answered with an HTML page that names no file of top==1.0" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ask(w.WheelStore(tmp_path / "other", shipped=[]), first_of=[["gone==1.0"], ["frame==2.0"]]) == [frame]


@pytest.mark.programs
def test_a_constraint_of_the_users_pip_hides_neither_the_next_alternative_nor_a_login_page(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = index.offer("frame", "2.0")
    constraints = tmp_path / "constraints.txt"
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    constraints.write_text("frame<=3.0\n", encoding="utf-8")
    both = [["frame==2.0+cpu"], ["frame==2.0"]]
    assert ask(w.WheelStore(tmp_path / "cache", shipped=[]), first_of=both) == [frame]
    constraints.write_text("frame<2.0\n", encoding="utf-8")
    with pytest.raises(w.WheelError, match=r"The user requested \(constraint\) frame<2.0"):
        ask(w.WheelStore(tmp_path / "other", shipped=[]), first_of=both)
    (index.folder / "simple" / "frame" / "index.html").write_text(SIGN_IN, encoding="utf-8")
    with pytest.raises(w.WheelError, match="answered with an HTML page that names no file of frame"):
        ask(w.WheelStore(tmp_path / "third", shipped=[]), first_of=both)


@pytest.mark.programs
def test_behind_a_login_page_the_cache_suffices(index: Index, tmp_path: Path) -> None:
    top = index.offer("top", "1.0")
    assert ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top") == [top]
    (index.folder / "simple" / "top" / "index.html").write_text(SIGN_IN, encoding="utf-8")
    assert ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top<2") == [top]


@pytest.mark.programs
def test_a_page_instead_of_a_wheel_is_named(index: Index, tmp_path: Path) -> None:
    (index.folder / "files" / "top-1.0-py3-none-any.whl").write_text(SIGN_IN, encoding="utf-8")
    index.publish()
    with pytest.raises(w.WheelError) as refused:
        ask(w.WheelStore(tmp_path / "cache", shipped=[]), "top")
    assert "the index's file of top is not a wheel, such as an HTML page of a mirror" in str(refused.value)


# --- what is shipped ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", tool.PLATFORMS, ids="-".join)
def test_the_locks_answer_what_the_roles_ask_by_default(platform: tuple[str, str, str]) -> None:
    """After a change of a role's defaults, 'make wheel-locks' writes the locks anew."""
    target = tool.target_of(*platform)
    locks = tool.shipped_for(target)
    have = {tuple(lock["asked"]["requirements"]) for lock in locks}
    assert len(have) == len(locks)
    asked = tool.tools_asked() | tool.environments_asked(target)
    environments = [shipped.wheels_in(lock) for lock in locks if "numpy" in lock["asked"]["requirements"]]
    asked |= tool.nccl_asked(environments)
    wanted = {one.requirements for one in asked}
    lacking = wanted - have
    assert have <= wanted, "a lock that no role asks for"
    assert all(any("torch" in requirement for requirement in one) for one in lacking), lacking
    assert all(any(requirement.endswith("+cpu") for requirement in one) for one in lacking), lacking


@pytest.mark.parametrize("platform", tool.PLATFORMS, ids="-".join)
def test_each_shipped_lock_holds_files_that_fit_and_satisfy_it(platform: tuple[str, str, str]) -> None:
    target = tool.target_of(*platform)
    for lock in tool.shipped_for(target):
        question = lock["asked"]
        assert (question["python"], question["machine"], question["glibc"]) == platform
        wheels = shipped.wheels_in(lock)
        have = {wheel.name: wheel.version for wheel in wheels}
        for requirement in w.parse_requirements(question["requirements"], "x"):
            assert requirement.specifier.contains(have[requirement.name], prereleases=True), requirement
        for wheel in wheels:
            assert tool.best([wheel.filename], target) == wheel.filename
            assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)


def test_one_file_name_has_one_hash_in_all_locks() -> None:
    seen: dict[str, str] = {}
    for lock in shipped.shipped_locks():
        for wheel in shipped.wheels_in(lock):
            assert seen.setdefault(wheel.filename, wheel.sha256) == wheel.sha256, wheel.filename
    assert len(seen) > 100


@pytest.mark.programs
def test_the_store_uses_the_shipped_locks_by_default(index: Index, tmp_path: Path) -> None:
    (answer,) = shipped.answers(shipped.shipped_locks(), NODE, w.parse_requirements(["numpy"], "x"), w.NO_CHOICE)
    assert answer.wheels
    index.server.server_close()
    with pytest.raises(w.WheelError, match=f"did not answer while looking for numpy=={answer.wheels[0].version}"):
        ask(w.WheelStore(tmp_path), "numpy")


def test_the_newest_wheel_that_fits_is_taken() -> None:
    files = [
        "numpy-2.0-cp311-cp311-musllinux_1_2_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "numpy-2.0-cp311-cp311-manylinux_2_38_x86_64.whl",
        "numpy-2.0-py3-none-any.whl",
    ]
    assert tool.best(files, NODE) == files[2]
    with pytest.raises(tool.UnresolvableError):
        tool.best(files[:1], NODE)


def test_a_lock_in_the_standard_form_is_read_for_one_node() -> None:
    def package(name: str, marker: str = "") -> dict[str, Any]:
        wheel = {"url": f"https://x.example/a%2B/{name}-1.0%2Bcpu-py3-none-any.whl", "hashes": {"sha256": name}}
        return {"name": name, "version": "1.0+cpu", "wheels": [wheel], **({"marker": marker} if marker else {})}

    packages = [package("zed"), package("here", 'sys_platform == "linux"'), package("there", 'python_version < "3.10"')]
    found = tool.wheels_of({"packages": packages}, NODE)
    assert [(wheel.name, wheel.filename, wheel.sha256) for wheel in found] == [
        ("here", "here-1.0+cpu-py3-none-any.whl", "here"),
        ("zed", "zed-1.0+cpu-py3-none-any.whl", "zed"),
    ]
