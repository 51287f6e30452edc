"""What a second controller streams back changes nothing on the first one but the log of its part."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.provisioning import playbook, runner_stream


def line(**said: Any) -> bytes:
    """A line of the stream."""
    return json.dumps(said).encode() + b"\n"


def received(folder: Path, stream: bytes) -> tuple[runner_stream.Received, list[dict[str, Any]]]:
    """Receive a stream; returns the end and the events."""
    heard: list[dict[str, Any]] = []
    return runner_stream.receive(io.BytesIO(stream), folder, heard.append), heard


def test_the_log_and_the_events_of_a_play_arrive(tmp_path: Path) -> None:
    text = b"PLAY [all]\n" * 200_000
    end, heard = received(tmp_path, line() + line(event={"event": "x"}) + line(rc=0, size=len(text)) + text)
    assert (end.rc, heard) == (0, [{"event": "x"}])
    assert (tmp_path / "artifacts/run/stdout").read_bytes() == text
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "artifacts/run/stdout"
    ]


def test_a_stream_that_breaks_off_is_no_success(tmp_path: Path) -> None:
    end, _heard = received(tmp_path, line() + line(event={"event": "x"}))
    assert (end.rc, end.explanation) == (None, "")


@pytest.mark.parametrize(
    "stream",
    [
        b"[]\n" + b"7\n",
        b"7\n",
        b"not JSON\n",
        b"[" * 100_000 + b"\n",
        line(rc=0),
        line(rc=0, size=1 << 60),
        line(rc=0, size=-1),
        line(rc=0, size="9"),
        line(rc=0, size=True),
        line(rc=0, size=9) + b"AAAA",
        line(rc="0", size=0),
        line(rc=False, size=0),
        line(event=[5]),
        line(event={"seconds": float("inf")}),
    ],
    ids=lambda stream: str(stream[:20]),
)
def test_a_stream_of_another_form_is_no_success(stream: bytes, tmp_path: Path) -> None:
    def hear(event: dict[str, Any]) -> None:
        int(event.get("seconds", 0))

    end = runner_stream.receive(io.BytesIO(stream), tmp_path, hear)
    assert end.rc is None
    assert "something else" in end.explanation


def test_a_line_without_end_fills_no_memory(tmp_path: Path) -> None:
    class Endless(io.BytesIO):
        seen = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0
            self.seen += size
            return b"x" * 10

    stream = Endless()
    assert runner_stream.receive(stream, tmp_path, print).rc is None
    assert stream.seen <= 64 << 20


PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        content: >-
          {{ query("env", 'ANSIBLE_REMOTE_USER', 'ANSIBLE_REMOTE_PORT', 'ANSIBLE_SSH_ARGS', 'ANSIBLE_LIBRARY') }}
        dest: DEST
        mode: "0600"
"""


@pytest.mark.programs
def test_the_first_controllers_way_to_nodes_counts_on_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the second one's ansible.cfg counts for it, nor does a setting travel that says nothing of the way."""
    first, second, play = tmp_path / "first", tmp_path / "second", tmp_path / "play"
    for folder in (first, second, play, tmp_path / "sent" / "project"):
        folder.mkdir(parents=True)
    (tmp_path / "play.yml").write_text(PLAY.replace("DEST", str(tmp_path / "told")))
    ssh = "[ssh_connection]\nssh_args = -o ProxyJump={}\n"
    (first / "ansible.cfg").write_text("[defaults]\nremote_user = ops\nremote_port = 2222\n" + ssh.format("gate"))
    (second / "ansible.cfg").write_text("[defaults]\nremote_user = other\n" + ssh.format("elsewhere"))
    monkeypatch.chdir(first)
    settings = {**playbook.travelling(), "ANSIBLE_LIBRARY": "/evil"}
    sent, back = io.BytesIO(), io.BytesIO()
    words = "--inventory=one, --connection=local --tags=all"
    runner_stream.transmit(tmp_path / "sent", sent, str(tmp_path / "play.yml"), words, {}, settings)
    monkeypatch.chdir(second)
    runner_stream.serve(io.BytesIO(sent.getvalue()), back, play, 0, lambda: False)
    end, _heard = received(tmp_path, back.getvalue())
    assert end.rc == 0
    assert "PLAY [all]" in (tmp_path / "artifacts/run/stdout").read_text()
    user, port, ssh_args, others = json.loads((tmp_path / "told").read_text())
    assert (user, port, others) == ("ops", "2222", "")
    assert ssh_args.startswith("-o ProxyJump=gate -o ControlMaster=auto")


@pytest.mark.programs
def test_a_log_longer_than_it_may_be_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sent" / "project").mkdir(parents=True)
    (tmp_path / "play").mkdir()
    (tmp_path / "play.yml").write_text(PLAY.replace("DEST", "/nowhere/at/all"))
    monkeypatch.setattr(runner_stream, "_MOST_LOG", 40)
    sent, back = io.BytesIO(), io.BytesIO()
    words = "--inventory=one, --connection=local --tags=all"
    runner_stream.transmit(tmp_path / "sent", sent, str(tmp_path / "play.yml"), words, {}, {})
    runner_stream.serve(io.BytesIO(sent.getvalue()), back, tmp_path / "play", 0, lambda: False)
    end, heard = received(tmp_path, back.getvalue())
    assert end.rc == 2
    assert any(one["event"] == "runner_on_failed" for one in heard)
    assert (tmp_path / "artifacts/run/stdout").stat().st_size == 40
