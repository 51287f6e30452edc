"""What a second controller streams back changes nothing on the first one but the log of its part."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_runner.utils.streaming import stream_dir
from clusterctl.provisioning import playbook, runner_stream

_LINK = 0o120777 << 16


class _Stream(io.BytesIO):
    name = "stream"


def line(**said: Any) -> bytes:
    """A line of the stream."""
    return json.dumps(said).encode() + b"\n"


def zipped(*members: tuple[str, int, str]) -> bytes:
    """The stream of a zip: each member with its attributes and content."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, attributes, content in members:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, attributes
            archive.writestr(info, content)
    return line(zipfile=len(packed.getvalue())) + base64.b64encode(packed.getvalue())


def received(folder: Path, stream: bytes) -> tuple[runner_stream.Received, list[dict[str, Any]]]:
    """Receive a stream; returns the end and the events."""
    heard: list[dict[str, Any]] = []
    return runner_stream.receive(io.BytesIO(stream), folder, heard.append), heard


def test_the_log_and_the_events_of_a_play_arrive(tmp_path: Path) -> None:
    artifacts, folder = tmp_path / "there", tmp_path / "here"
    (artifacts / "job_events").mkdir(parents=True)
    folder.mkdir()
    (artifacts / "stdout").write_text("PLAY [all]\n" * 100_000)
    zipping = _Stream()
    stream_dir(str(artifacts), zipping)
    event = line(event="clusterctl", uuid="u", counter=1, clusterctl={"event": "x"})
    stream = line(status="running") + event + zipping.getvalue() + line(status="successful") + line(eof=True)
    end, heard = received(folder, stream)
    assert (end.status, heard) == ("successful", [{"event": "x"}])
    assert (folder / "artifacts/run/stdout").read_text() == "PLAY [all]\n" * 100_000


@pytest.mark.parametrize("name", ["link/new", "../../outside/new", "link/f", "../../outside/f"])
def test_no_zip_of_a_worker_reaches_another_file(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "here"
    outside.mkdir()
    folder.mkdir()
    (outside / "f").write_text("old")
    (outside / "f").chmod(0o600)
    stream = zipped(("link", _LINK, str(outside)), (name, 0o100666 << 16, "forged"), ("stdout", 0, "text"))
    received(folder, stream + line(status="successful") + line(eof=True))
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_text() == "old"
    assert (outside / "f").stat().st_mode & 0o777 == 0o600
    assert [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()] == [
        "artifacts/run/stdout"
    ]
    assert not (folder / "artifacts/run/stdout").is_symlink()


@pytest.mark.parametrize("name", ["stdout", "./stdout"])
def test_a_log_that_is_a_link_is_the_text_of_its_target_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "here").mkdir()
    received(tmp_path / "here", zipped((name, _LINK, str(tmp_path / "secret"))))
    log = tmp_path / "here/artifacts/run/stdout"
    assert not log.exists() or log.read_text() == str(tmp_path / "secret")


@pytest.mark.parametrize(
    "stream",
    [
        b"[]\n",
        b"7\n",
        b"not JSON\n",
        b"[" * 100_000 + b"\n",
        line(zipfile=1 << 60),
        line(zipfile=-1),
        line(zipfile="9"),
        line(zipfile=9) + b"AAAA",
        line(zipfile=9) + b"!" * 12,
        line(zipfile=9) + base64.b64encode(b"not a zip"),
        zipped(("other", 0, "text")),
        zipped(("stdout", 0, "text")) * 2,
        line(clusterctl=[5]),
        line(clusterctl={"seconds": float("inf")}),
    ],
    ids=lambda stream: str(stream[:20]),
)
def test_a_stream_of_another_form_is_no_success(stream: bytes, tmp_path: Path) -> None:
    def hear(event: dict[str, Any]) -> None:
        int(event.get("seconds", 0))

    end = runner_stream.receive(io.BytesIO(line(status="successful") + stream), tmp_path, hear)
    assert end.status == ""
    assert "something else" in end.explanations[0]


def test_a_line_without_end_fills_no_memory(tmp_path: Path) -> None:
    class Endless(io.BytesIO):
        seen = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0
            self.seen += size
            return b"x" * 10

    stream = Endless()
    assert runner_stream.receive(stream, tmp_path, print).status == ""
    assert stream.seen <= 64 << 20


def test_a_log_that_unpacks_to_much_more_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_stream, "_MOST_LOG", 1 << 21)
    end, _heard = received(tmp_path, zipped(("stdout", 0, "x" * (3 << 21))) + line(status="failed") + line(eof=True))
    assert end.status == "failed"
    assert (tmp_path / "artifacts/run/stdout").stat().st_size == 1 << 21


def test_explanations_without_end_fill_no_memory(tmp_path: Path) -> None:
    found, _ = received(tmp_path, line(status="error", job_explanation="x" * 5000) * 500)
    assert sum(map(len, found.explanations)) <= 10_000


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
    sent, back = _Stream(), _Stream()
    words = "--inventory=one, --connection=local --tags=all"
    runner_stream.transmit(tmp_path / "sent", sent, str(tmp_path / "play.yml"), words, {}, settings)
    monkeypatch.chdir(second)
    runner_stream.serve(_Stream(sent.getvalue()), back, play, 0, lambda: False)
    end, _heard = received(tmp_path, back.getvalue())
    assert end.status == "successful"
    user, port, ssh_args, others = json.loads((tmp_path / "told").read_text())
    assert (user, port, others) == ("ops", "2222", "")
    assert ssh_args.startswith("-o ProxyJump=gate -o ControlMaster=auto")
