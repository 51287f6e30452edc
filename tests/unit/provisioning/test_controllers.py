"""What a worker must have, and what a worker takes into its cache."""

from __future__ import annotations

import io
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.provisioning import controllers, playbook, worker, worker_part
from clusterctl.provisioning.ansible_events import Translator
from clusterctl.provisioning.controllers import OWN, SharedRun, Shares, share
from clusterctl.provisioning.playbook import End
from clusterctl.remote import python
from clusterctl.support.errors import ConfigError, UnreachableError
from hypothesis import given
from hypothesis import strategies as st

HOST = Host("ops2", "ops2", python="/opt/clusterctl/bin/python")


def asked(monkeypatch: pytest.MonkeyPatch, **differs: Any) -> controllers.Worker:
    answer = {**worker.installed(), **{name.replace("_", "-"): value for name, value in differs.items()}}
    monkeypatch.setattr(python, "ask", lambda *_given: python.Reply(answer))
    return controllers.ready([HOST])["ops2"]


def test_a_worker_like_this_controller_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, cached=["artifacts/openmpi-5.json"])
    assert found.cached == {"artifacts/openmpi-5.json"}
    assert found.argv("check")[-1] == "/opt/clusterctl/bin/python -m clusterctl.provisioning.worker check"


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"ansible_core": "2.1.0"}, "The worker ops2 has ansible-core 2.1.0, and this controller has "),
        ({"ansible_core": ""}, "The worker ops2 has no ansible-core, and this controller has "),
        ({"clusterctl": "0.0.1"}, "The worker ops2 has clusterctl 0.0.1, and this controller has "),
        ({"ansible_runner": ""}, "The worker ops2 has no ansible-runner beside /opt/clusterctl/bin/python; install "),
        ({"content": "0"}, "The worker ops2 has other roles or plugins in its collection than this controller"),
    ],
)
def test_a_worker_that_differs_is_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, differs: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(monkeypatch, **differs)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    "differs",
    [
        {"cached": 5},
        {"cached": ["artifacts/../../etc.json"]},
        {"cached": ["artifacts/a.json"] * 200_000},
        {"cached": [{"a": 1}]},
        {"playbooks": "relative"},
        {"playbooks": "/a\nb"},
        {"playbooks": 5},
        {"ansible_core": ["2"]},
        {"clusterctl": "1\n2"},
        {"content": "x" * 10_000},
    ],
)
def test_what_a_worker_says_has_types_and_bounds(monkeypatch: pytest.MonkeyPatch, differs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^The worker ops2 gave an answer that no clusterctl gives") as refused:
        asked(monkeypatch, **differs)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_a_worker_that_says_nothing_of_ours_is_read_within_bounds() -> None:
    class Endless:
        seen = 0

        def readline(self, most: int) -> bytes:
            self.seen += most
            return b"x" * most

    stream = Endless()
    with pytest.raises(worker_part.BrokenOffError, match="does not begin"):
        worker_part._beginning(stream)  # type: ignore[arg-type] # noqa: SLF001 - needs a process otherwise
    assert stream.seen < 64 << 20
    lines = io.BytesIO(b"welcome\n" + worker.BEGINS + b"/tmp/clusterctl-held-1\n")
    assert worker_part._beginning(lines) == "/tmp/clusterctl-held-1"  # noqa: S108, SLF001 - not a file


def test_a_worker_speaks_of_its_own_hosts_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def streamed(_part: object, _log: object, translator: Translator, _cancel: object) -> tuple[int, tuple[str, ...]]:
        for host in ("node1", "node9"):
            data = {"host": host, "task": "t", "res": {"msg": "forged"}}
            translator.handle({"event": "runner_on_failed", "event_data": data, "at": 1.0})
        stats = {"failures": {"node1": 1, "node9": 1}, "dark": {"node8": 1}}
        translator.handle({"event": "playbook_on_stats", "event_data": stats})
        return 2, ()

    monkeypatch.setattr(worker_part, "_streamed", streamed)
    monkeypatch.setattr(worker_part, "give_cache", lambda *_given: None)
    heard: list[Any] = []
    play = SimpleNamespace(diff=False)
    part = worker_part.WorkerPart(controllers.Worker(HOST, "/p", frozenset()), play, ("node1",), "", ())  # type: ignore[arg-type]
    end = worker_part.play(part, tmp_path / "log", heard.append, playbook.Cancel())
    assert {event.host for event in heard if hasattr(event, "host")} == {"node1"}
    assert (end.failed, end.unreachable) == ({"node1"}, frozenset())


def test_a_worker_that_floods_while_it_takes_packs_is_read_within_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    locks = tmp_path / "clusterctl" / "locks"
    locks.mkdir(parents=True)
    (locks / "a.json").write_bytes(b"{}")
    flood = "import os,sys\nfor _ in range(400): os.write(1, b'x' * (1 << 20))\nsys.stdin.buffer.read()"
    monkeypatch.setattr(controllers.Worker, "argv", lambda *_words: [sys.executable, "-c", flood])
    tracemalloc.start()
    try:
        with pytest.raises(worker_part.BrokenOffError, match="could not take the artifacts"):
            worker_part.give_cache(controllers.Worker(HOST, "/p", frozenset()), (), playbook.Cancel())
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("word", ["./ops.ini", "/srv/none", "ops.yaml"])
def test_an_inventory_of_workers_that_does_not_exist_is_named_as_such(word: str) -> None:
    with pytest.raises(ConfigError, match=f"^--workers names {word}, which does not exist; give an inventory"):
        controllers.named(word)


def test_a_worker_that_does_not_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    done = python.Done(255, b"", b"ssh: connect to host ops2 port 22: Connection refused\n")
    monkeypatch.setattr(python, "ask", lambda *_given: python.Reply(None, "refused", done=done))
    with pytest.raises(UnreachableError, match=r"^The worker ops2 cannot be used: ops2 .*refuses connections"):
        controllers.ready([HOST])
    monkeypatch.setattr(python, "ask", lambda *_given: python.Reply(None, "did not answer within 60 s", timed_out=True))
    with pytest.raises(UnreachableError, match="it did not answer within 60 s; see whether it hangs"):
        controllers.ready([HOST])


def test_a_worker_runs_the_python_of_this_controller_unless_it_names_one(tmp_path: Path) -> None:
    (tmp_path / "workers.ini").write_text("ops2 ansible_python_interpreter=/opt/python\nops3\n", encoding="utf-8")
    assert [host.python for host in controllers.named(str(tmp_path / "workers.ini"))] == ["/opt/python", sys.executable]
    assert [host.name for host in controllers.named("ops2,ops3")] == ["ops2", "ops3"]
    assert [host.name for host in controllers.named("ops2")] == ["ops2"]


def test_a_worker_takes_whole_files_of_a_cache_and_nothing_else(tmp_path: Path) -> None:
    assert worker.take(packed({"artifacts/a-1.tar.zst": b"pack", "artifacts/a-1.json": b"{}"}), tmp_path) == 2
    assert worker.cached(tmp_path) == ["artifacts/a-1.json"]
    for name in ("../outside.json", "artifacts/../../outside.json", "/etc/passwd", "artifacts/.hidden", "other/a.json"):
        with pytest.raises(ValueError, match="is not a file of a cache"):
            worker.take(packed({name: b"{}"}), tmp_path)
    whole = packed({"artifacts/b-1.tar.zst": b"x" * 100_000}).getvalue()
    with pytest.raises(tarfile.ReadError):
        worker.take(io.BytesIO(whole[:50_000]), tmp_path)
    assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == ["a-1.json", "a-1.tar.zst"]


def packed(files: dict[str, bytes]) -> io.BytesIO:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as stream:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            stream.addfile(member, io.BytesIO(data))
    return io.BytesIO(found.getvalue())


@pytest.mark.parametrize("says", ["", "clusterctl works in /nowhere\\n", "clusterctl works in /nowhere\\n{}\\n{"])
def test_a_worker_that_falls_silent_is_lost(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_part, "_SILENCE_S", 1.0)
    end, heard = played(["sh", "-c", f"printf '{says}'; exec sleep 15"], tmp_path, monkeypatch)
    assert end.failed == {"node1"}
    assert "said nothing for" in heard[0].message


def played(says: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[End, list[Any]]:
    """Play a part of one host on a worker that is this command; returns its end and what was heard."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # without packs
    monkeypatch.setattr(worker_part, "_project", lambda *_given: [])
    monkeypatch.setattr(worker_part.playbook, "passwords_of", lambda _play: {})
    monkeypatch.setattr(worker_part.runner_stream, "transmit", lambda *_given: None)
    monkeypatch.setattr(python, "ask", lambda *_given: python.Reply({}))
    monkeypatch.setattr(controllers.Worker, "argv", lambda *_given: [*says])
    play: Any = SimpleNamespace(playbook=folder / "site.yml", retries=0, diff=False)
    part = worker_part.WorkerPart(controllers.Worker(HOST, "/there", frozenset()), play, ("node1",), "", ())
    heard: list[Any] = []
    return worker_part.play(part, folder / "log", heard.append, playbook.Cancel()), heard


_BEGINS = "clusterctl works in /nowhere\\n"


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("welcome\\n", "does not begin its part: its login scripts print without an end"),
        (f"{_BEGINS}not JSON\\n", "broke off in the middle of its part (it sent something else than a play ("),
    ],
)
def test_a_worker_that_breaks_the_form_and_goes_on_is_named_for_that_at_once(
    says: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    end, heard = played(["sh", "-c", f"printf '{says}'; exec yes '{says}'"], tmp_path, monkeypatch)
    assert time.monotonic() - began < 30
    assert end.failed == {"node1"}
    assert heard[0].message.startswith(f"The worker ops2 {words}")


@pytest.mark.parametrize("ends", [False, True])
def test_a_worker_succeeds_with_the_end_of_its_play_alone(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = '{"event": {"event": "playbook_on_stats", "event_data": {}, "at": 1.0}}\\n' if ends else ""
    says = f"{_BEGINS}{stats}" + '{"rc": 0, "size": 0}\\n'
    end, heard = played(["sh", "-c", f"printf '{says}'"], tmp_path, monkeypatch)
    if ends:
        assert (end.status, end.rc, end.failed, heard) == ("successful", 0, frozenset(), [])
    else:
        assert (end.status, end.rc, end.failed) == ("failed", 254, {"node1"})
        assert end.complaints == (heard[0].message,)
        assert heard[0].message.startswith("ops2: Ansible could not write the events of the run")


@pytest.mark.parametrize("canceled", [False, True])
def test_a_worker_that_takes_nothing_is_lost(
    canceled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(worker_part, "_SILENCE_S", 60.0 if canceled else 1.0)
    monkeypatch.setattr(worker_part.paths, "cache_dir", lambda: SimpleNamespace(value=tmp_path))
    monkeypatch.setattr(controllers.Worker, "argv", lambda *_given: ["sleep", "15"])
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "tree.tar.zst").write_bytes(bytes(1 << 20))
    cancel = playbook.Cancel()
    if canceled:
        cancel.request()
    with pytest.raises(worker_part.BrokenOffError):
        worker_part.give_cache(controllers.Worker(HOST, "/there", frozenset()), ["tree"], cancel)


# --- who plays which hosts, where several controllers share a run ---


HOSTS = ("node1", "node2", "node3", "node4", "node5")


def test_the_first_controller_keeps_what_no_worker_names() -> None:
    found = controllers.by_pattern(HOSTS, {"ops2": {"node4", "node2", "elsewhere"}, "ops3": {"node5"}})
    assert found == {OWN: ("node1", "node3"), "ops2": ("node2", "node4"), "ops3": ("node5",)}
    assert controllers.words(found) == "this controller: node[1,3]; ops2: node[2,4]; ops3: node5"


def test_a_host_of_two_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ops2 and ops3 both name node4; leave each host to one of the workers\.$"):
        controllers.by_pattern(HOSTS, {"ops2": {"node4"}, "ops3": {"node4", "node5"}})


@given(st.integers(0, 40), st.integers(1, 5), st.sets(st.integers(0, 40)))
def test_equal_parts_have_every_host_once(count: int, workers: int, here: set[int]) -> None:
    hosts = [f"node{number}" for number in range(count)]
    names = [f"ops{number}" for number in range(workers)]
    only_here = {f"node{number}" for number in here} & set(hosts)
    found = controllers.equal(hosts, names, only_here)
    assert list(found) == [OWN, *names]
    assert sorted(name for its in found.values() for name in its) == sorted(hosts)
    assert only_here <= set(found[OWN])
    sizes = [len(its) for its in found.values()]
    if not only_here:
        assert max(sizes) - min(sizes) <= 1


def test_hosts_that_are_done_leave_the_shares() -> None:
    assert controllers.without({OWN: ("node1",), "ops2": ("node2", "node3")}, {"node1", "node3"}) == {
        OWN: (),
        "ops2": ("node2",),
    }


# --- the order of a run on several controllers, and where it ends early ---


FOUND = {OWN: ("node1", "node2"), "ops2": ("node3", "node4")}
GOOD = End("successful", 0)


def run_shared(meet: End, *parts: End) -> tuple[SharedRun, list[Shares]]:
    played: list[Shares] = []
    ends = iter(parts)

    def play(found: Shares) -> Sequence[End]:
        played.append(found)
        return [next(ends)]

    return share(FOUND, {"node3"}, lambda: meet, play), played


def test_the_builder_goes_ahead_here_and_the_others_follow_everywhere() -> None:
    done, played = run_shared(GOOD, GOOD, GOOD)
    assert played == [{OWN: ("node3",)}, {OWN: ("node1", "node2"), "ops2": ("node4",)}]
    assert (done.end.status, done.shares, done.message) == ("successful", played[1], "")


def test_a_host_that_failed_at_the_meeting_is_left_out() -> None:
    done, played = run_shared(End("failed", 2, failed=frozenset({"node4"})), GOOD, GOOD)
    assert played[1] == {OWN: ("node1", "node2"), "ops2": ()}
    assert done.end.failed == {"node4"}


def test_no_worker_begins_where_the_meeting_was_refused() -> None:
    done, played = run_shared(End("failed", 1))
    assert played == []
    assert done.end.rc == 1


def test_no_worker_begins_where_the_builder_failed() -> None:
    done, played = run_shared(GOOD, End("failed", 2, failed=frozenset({"node3"})))
    assert len(played) == 1
    assert done.message == "The workers did not begin, because node3 failed, which goes ahead of the others."


def test_a_stopped_run_starts_nothing_more() -> None:
    assert len(run_shared(GOOD, End("canceled", 254))[1]) == 1
