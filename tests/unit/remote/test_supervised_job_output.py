"""A user's job through the supervisor: the look before it, its words, and its output byte by byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import supervised_job
from local_jobs import HereLogin


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    names = ["sh", "./script.py", "nothing-of-this-name", "/bin/sh"]
    (found,) = supervised_job.look([here], names, {"node1": "/usr/bin:/bin"}, str(tmp_path))
    assert found.found["sh"].endswith("/sh")
    assert found.found["./script.py"] == str(tmp_path / "script.py")
    assert found.found["nothing-of-this-name"] == ""
    assert "./script.py" not in found.runs
    assert found.has_folder


def test_output_comes_byte_by_byte_and_nothing_of_it_is_kept() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    heard: dict[str, int] = {"stdout": 0, "stderr": 0}

    def take(stream: str, data: bytes) -> None:
        heard[stream] += len(data)

    argv = ("sh", "-c", "head -c 30000000 /dev/zero; printf 'no end' >&2; exit 3")
    outcome = supervised_job.run(here, supervised_job.JobSpec(f"unit-bytes-{os.getpid()}", argv, None), on_data=take)
    assert (outcome.ending, outcome.rc, outcome.lines) == ("exited", 3, ())
    assert heard == {"stdout": 30_000_000, "stderr": 6}


def test_the_users_words_stay_as_they_are_and_ours_get_a_port() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    heard: list[bytes] = []
    argv = ("sh", "-c", 'echo "$@"', "sh", "{port}", "{port}", "{work_dir}")
    spec = supervised_job.JobSpec(f"unit-port-{os.getpid()}", argv, 20, port=True, literal=2, directory="/")
    supervised_job.run(here, spec, on_data=lambda _, data: heard.append(data))
    port, *rest = b"".join(heard).decode().split()
    assert 1024 <= int(port) < 65536
    assert rest == ["{port}", "{work_dir}"]


def test_a_reader_that_goes_away_ends_the_job() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))

    def take(_stream: str, _data: bytes) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        supervised_job.run(here, supervised_job.JobSpec(f"unit-gone-{os.getpid()}", ("yes",), None), on_data=take)
