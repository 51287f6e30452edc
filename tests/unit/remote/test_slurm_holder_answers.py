"""What a submit host writes in the place of the program that holds an allocation is typed and bounded."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from clusterctl.remote import slurm as of_slurm
from clusterctl.remote.slurm import Allocation, Slurm
from clusterctl.remote.slurm_text import SlurmRequest
from clusterctl.support.errors import ValidationCouldNotRunError
from stand_in_slurm import StandIn

pytestmark = pytest.mark.programs
REQUEST = SlurmRequest(nodes=2, time_s=90)
_SAID = '{"holder": "said", "text": "salloc: Granted job allocation 42"}'
_GRANTED = '{"holder": "granted", "variables": {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[1-2]"}}'


def _holder(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = SimpleNamespace(argv=lambda _python: ["sh", "-c", script], data=b"")
    monkeypatch.setattr(of_slurm.python, "program", lambda _name: program)
    monkeypatch.setattr(of_slurm, "_RELEASE_S", 1.0)


@pytest.mark.parametrize(
    "event",
    [
        '{"holder": "granted"}',
        '{"holder": "granted", "variables": "x"}',
        '{"holder": "granted", "variables": {"SLURM_JOB_ID": "x", "SLURM_JOB_NODELIST": "node1"}}',
        '{"holder": "granted", "variables": {"SLURM_JOB_ID": -5, "SLURM_JOB_NODELIST": "node1"}}',
        '{"holder": "granted", "variables": {"SLURM_JOB_ID": 42, "SLURM_JOB_NODELIST": "--help"}}',
        '{"holder": "granted", "variables": {"SLURM_JOB_ID": 42, "SLURM_JOB_NODELIST": ["node1"]}}',
        '{"holder": "ended", "rc": "x", "why": "ended"}',
        '{"holder": "ended", "rc": 1}',
        '{"holder": "ended", "rc": 1, "why": ["late"]}',
        '{"holder": ["said"]}',
        '{"holder": "said"}',
        '{"holder": ' + "[" * 100_000,
    ],
)
def test_an_event_of_another_form_is_one_sentence(event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(tmp_path, "granted").use(monkeypatch)
    (tmp_path / "event").write_text(f"{event}\n")
    _holder(monkeypatch, f"cat {tmp_path}/event; exec cat >/dev/null")
    began = time.monotonic()
    with (
        pytest.raises(ValidationCouldNotRunError, match=r"This machine .*in another form"),
        Allocation(Slurm(), REQUEST, 20.0) as allocation,
    ):
        allocation.wait()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("where", ["", ">&2"], ids=["events", "errors"])
@pytest.mark.parametrize(
    "what", ["head -c 300000000 /dev/zero", f"yes '{_SAID}' | head -c 300000000"], ids=["line", "lines"]
)
def test_output_without_end_fills_no_memory(
    what: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StandIn(tmp_path, "granted").use(monkeypatch)
    _holder(monkeypatch, f"({what}) {where}; exit 1")
    tracemalloc.start()
    with pytest.raises(ValidationCouldNotRunError), Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_a_holder_that_closes_its_output_and_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(tmp_path, "granted").use(monkeypatch)
    _holder(monkeypatch, "exec >&- 2>&-; trap '' TERM; while :; do sleep 1; done")
    began = time.monotonic()
    with pytest.raises(ValidationCouldNotRunError), Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
    assert time.monotonic() - began < 30


def test_what_is_written_after_the_grant_ends_no_job_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(tmp_path, "granted").use(monkeypatch)
    _holder(
        monkeypatch, f"echo '{_SAID}'; echo '{_GRANTED}'; echo banner; echo '{{\"holder\": 5}}'; exec cat >/dev/null"
    )
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        assert allocation.wait().names == ("node1", "node2")
        until = time.monotonic() + 10
        while not (why := allocation.ended(look=False)) and time.monotonic() < until:
            time.sleep(0.05)
        assert "in another form" in why
