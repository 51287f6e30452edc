"""Programs for nodes: a zip on standard input of a bare Python, its answers, and nothing left behind."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import waiting
from clusterctl.remote import python
from clusterctl.remote.facts import NODE_PROBE
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import node_starter

PROGRAMS = (NODE_PROBE, "login_probe", "fabric_probe")
UTILS = content.root() / "plugins" / "module_utils"
BY_THE_MOMENT = {"time", "interfaces", "disk", "scratch", "swap_used_bytes", "leftovers"}


def run(program: python.Program, request: bytes, *arguments: str, interpreter: str = sys.executable) -> str:
    done = subprocess.run(
        program.argv(interpreter, *arguments), input=program.data + request, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> None:
    """Put these modules in the place of ``plugins/module_utils``."""
    folder = tmp_path / "plugins" / "module_utils"
    for name, source in sources.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    shutil.copy(UTILS / "node_starter.py", folder)
    monkeypatch.setattr(content, "root", lambda: tmp_path)
    monkeypatch.setattr(python, "program", python.program.__wrapped__)


@pytest.mark.parametrize("module", PROGRAMS)
def test_the_same_files_give_the_same_bytes(module: str) -> None:
    again = python.program.__wrapped__(module)
    assert again.data == python.program(module).data
    packed = zipfile.ZipFile(io.BytesIO(again.data[again.starter_bytes :]))
    assert packed.testzip() is None
    assert len(again.data) - again.starter_bytes == again.zip_bytes
    assert {name: packed.read(name) for name in packed.namelist()} == node_starter.files_of(
        again.data[again.starter_bytes :]
    )


def test_a_package_travels_whole_and_alone() -> None:
    program = python.program(NODE_PROBE)
    files = node_starter.files_of(program.data[program.starter_bytes :])
    assert files == {f"node_look/{path.name}": path.read_bytes() for path in (UTILS / "node_look").glob("*.py")}


def test_the_zip_answers_as_the_package_does() -> None:
    request = {"artifacts": [], "libraries": [{"soname": "libc.so.6"}], "watch": [{"path": "/etc/hosts"}]}
    from_zip = json.loads(run(python.program(NODE_PROBE), json.dumps(request).encode()))
    argv = [sys.executable, "-m", "node_look.record", json.dumps(request)]
    from_package = json.loads(subprocess.check_output(argv, cwd=UTILS))
    assert from_zip["problems"] == []
    assert {key: from_zip[key] for key in from_zip.keys() - BY_THE_MOMENT} == {
        key: from_package[key] for key in from_package.keys() - BY_THE_MOMENT
    }
    assert from_zip.keys() == from_package.keys()


def test_the_oldest_python_runs_every_program() -> None:
    interpreters = sorted((Path.home() / ".pyenv").glob("versions/3.9.*/bin/python3"))
    if not interpreters:
        pytest.skip("there is no Python 3.9 here")
    for interpreter in interpreters:
        assert json.loads(run(python.program(NODE_PROBE), b"{}", interpreter=str(interpreter)))["problems"] == []


def test_nothing_is_left_on_the_node_and_nothing_of_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of the working directory, of PYTHONPATH and of the home are not imported, and no file is written."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "node_look.py").write_text("raise SystemExit('a stranger ran')", encoding="utf-8")
    for name in ("HOME", "TMPDIR", "PYTHONPATH"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.chdir(home)
    before = sorted(tmp_path.rglob("*"))
    assert json.loads(run(python.program(NODE_PROBE), b"{}"))["problems"] == []
    assert sorted(tmp_path.rglob("*")) == before


def test_arguments_and_what_follows_the_zip_reach_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = "import sys\nfrom . import words\n\n\ndef main(arguments):\n"
    main += "    print(arguments, sys.stdin.buffer.read(), words.SAID, __file__ if '__file__' in globals() else '')\n"
    of(tmp_path, monkeypatch, a__in____init__="", a__in____main__=main, a__in__words="SAID = 'deep'\n")
    assert (
        run(python.program("a.__main__"), b"rest", "x y", "'").split("\n")[0].startswith("['x y', \"'\"] b'rest' deep")
    )


def test_a_traceback_names_module_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(tmp_path, monkeypatch, broken="def main(arguments):\n    return 1 / 0\n")
    program = python.program("broken")
    done = subprocess.run(program.argv(sys.executable), input=program.data, capture_output=True, check=False)
    assert done.returncode == 1
    assert b'File "broken.py", line 2, in main' in done.stderr


def test_a_zip_that_was_cut_off_is_an_error() -> None:
    program = python.program(NODE_PROBE)
    short = program.data[: program.starter_bytes + program.zip_bytes // 2]
    done = subprocess.run(program.argv(sys.executable), input=short, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""


def test_an_answer_is_found_among_the_lines_of_a_login_script() -> None:
    words = "echo Welcome; echo '{}'; echo '{\"found\": 1}'; echo '{\"banner\": 2}'; echo '['; echo bye >&2"
    reply = python.ask(["sh", "-c", words], b"", 5, {"found"})
    assert reply == python.Reply({"found": 1})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("echo one >&2; echo two >&2; exit 3", python.Reply(None, "two")),
        ("exit 3", python.Reply(None, "ended with status 3 and without an answer")),
        ("sleep 60", python.Reply(None, "did not answer within 0.3 s", timed_out=True)),
    ],
)
def test_a_command_without_an_answer_says_why(words: str, expected: python.Reply) -> None:
    assert python.ask(["sh", "-c", words], b"", 0.3 if "sleep" in words else 5, {"found"}) == expected


def conversation(words: str, mark: bytes = b'{"a":') -> dict[str, Any]:
    async def inside() -> dict[str, Any]:
        async with python.talk(["sh", "-c", words]) as talk:
            await talk.send(b"ping\n")
            return await asyncio.wait_for(talk.answer(mark), 5)

    return asyncio.run(inside())


def test_a_conversation_passes_over_what_is_not_an_answer() -> None:
    assert conversation("echo motd; read word; echo '{\"a\":\"'$word'\"}'; sleep 60") == {"a": "ping"}


def test_a_conversation_that_ends_early_tells_the_last_words() -> None:
    with pytest.raises(python.EndedError, match=r"^Permission denied$"):
        conversation("echo Warning >&2; echo Permission denied >&2; exit 255")


def test_after_a_conversation_nothing_of_the_command_runs(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    began = time.monotonic()
    assert conversation(f"sleep 61 & echo $! > {place}; echo '{{\"a\":1}}'; wait") == {"a": 1}
    assert time.monotonic() - began < 30, "it waited for the end of the command's child"
    assert waiting.ends(int(place.read_text(encoding="utf-8")))


def test_a_command_that_is_not_installed_is_told_apart() -> None:
    with pytest.raises(python.NoClientError, match="no-such-ssh"):
        asyncio.run(python.Conversation.start(["no-such-ssh"]))


def test_what_is_left_of_the_output_comes_with_the_ending() -> None:
    async def inside() -> python.Ending:
        async with python.talk(["sh", "-c", "cat; echo later >&2; exit 7"]) as talk:
            return await talk.finish(b"x" * 300_000)

    assert asyncio.run(inside()) == python.Ending(7, b"x" * 300_000, "later\n")
