"""The check ``copies``: verdicts over what nodes print, and the node's program on this machine."""

from __future__ import annotations

import json
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import node_programs
import numpy as np
import pytest
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.copies import Copies, CopiesOptions, chance_of

MPI = "/usr/local/openmpi-5.0.7-aa"
NODES = ("node1", "node2", "node3")
WRONG = {
    "what": "copy 4,711 of 1,048,576 bytes on core 5, byte 24 (1 of 131,072 words wrong)",
    "expected": "0x5555555555555555",
    "got": "0x5555555555555455 (wrong bits 0x100)",
}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return node_programs.load("copy_checks")


def line(event: str, rank: int, **more: Any) -> OutputLine:
    head = {"clusterctl": 1, "event": event, "check": "copies", "rank": rank, "host": NODES[rank]}
    return OutputLine("stderr", 1.0, json.dumps({**head, **more}))


def answer(rank: int, copies: int, **more: Any) -> OutputLine:
    good = {"ok": True, "compared": 9, "wrong": 0, "library_path": f"{MPI}/lib/libmpi.so.40"}
    return line("result", rank, **{**good, "facts": {"copies": str(copies), "cores": "2"}, **more})


def judged(*lines: OutputLine, **outcome: Any) -> base.Judgement:
    named = {name: name for name in NODES}
    site = base.Site(version="5.0.7", slots=dict.fromkeys(NODES, 2), names=named, libraries=dict.fromkeys(NODES, MPI))
    return Copies().judge(site, JobOutcome(lines=lines, **{"ending": "exited", "seconds": 9.0, "rc": 0, **outcome}))


def test_a_pass_says_what_it_would_have_found_by_the_core_with_the_fewest_copies() -> None:
    found = judged(answer(0, 29_956), answer(1, 10_000), answer(2, 29_956))
    assert found.verdict is Verdict.PASS
    assert "at least 10,000 copies of 1 MiB, which finds a core that corrupts 1 in 10,000" in found.reason
    assert [one.value for one in found.measurements if one.name == "copies_of_a_core"] == [10_000]


def test_a_wrong_bit_names_the_node_and_its_cure() -> None:
    found = judged(answer(0, 9), answer(1, 9, ok=False, wrong=1, problems=[WRONG]), answer(2, 9), rc=1)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert "copy 4,711 of 1,048,576 bytes on core 5, byte 24" in found.reason
    assert found.next_step.startswith("take the node out of use")


def test_a_node_without_any_copy_is_no_pass() -> None:
    found = judged(answer(0, 9), answer(1, 0), answer(2, 9))
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ("node2",))
    assert found.reason == "the time was too short for a copy on every core of node2"


def test_a_job_that_ended_otherwise_keeps_its_own_reason() -> None:
    found = judged(line("started", 0), ending="deadline")
    assert found.verdict is Verdict.ERROR
    assert found.reason == "no rank came up within 0 s"
    assert found.next_step == ""


@pytest.mark.parametrize("chance", [0.5, 0.95, 0.9999])
def test_so_many_copies_find_it_with_this_chance_and_one_fewer_does_not(program: ModuleType, chance: float) -> None:
    copies = program.wanted(chance, 10_000)
    assert chance_of(copies, 10_000) >= chance > chance_of(copies - 1, 10_000)


def test_the_program_gets_the_options_and_the_deadline_holds_the_budget() -> None:
    made = Copies(CopiesOptions(size=1 << 20, one_in=500, chance=0.99, budget_s=7))
    site = base.Site("5.0.7", {"node1": 2})
    argv = made.program(site, 60.0)
    assert argv[-8:] == ("--size", "1048576", "--one-in", "500", "--chance", "0.99", "--budget", "7")
    assert made.measuring_s(site) == 7
    assert base.deadline_s(Copies(CopiesOptions(deadline_s=20)), site) == base.deadline_s(Copies(), site) - 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size: 1 KiB", "at least 4 KiB and at most 1 GiB"),
        ("one_in: 1", "at least 2"),
        ("chance: 100 %", "between 50 % and 99.99 %"),
    ],
)
def test_an_option_out_of_its_limits_is_refused(options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        registry.parse(f"extends: nightly\nchecks:\n  copies: {{{options}}}\n", "validation.yml")


def crew(program: ModuleType, numpy: Any, *, until_s: float = 60.0, **options: Any) -> Any:
    given = SimpleNamespace(**{"size": 1 << 16, "chance": 0.5, "one_in": 1000.0, **options})
    rank = SimpleNamespace(arguments=given, rank=0, findings=program.rank_program.Findings())
    made = program.Crew(numpy, rank, time.monotonic() + until_s)
    made.work()
    return made


class Faulty:
    """Numpy that flips a bit of the copies with these numbers, counted over all cores."""

    def __init__(self, *wrong: int) -> None:
        self.wrong, self.copies = wrong, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def copyto(self, target: Any, source: Any) -> None:
        np.copyto(target, source)
        self.copies += 1
        if self.copies in self.wrong:
            target[3] ^= np.uint64(1 << 8)


def test_every_core_makes_the_copies_and_none_is_wrong(program: ModuleType) -> None:
    made = crew(program, np)
    assert made.made == dict.fromkeys(sorted(os.sched_getaffinity(0)), 693)
    assert (made.rank.findings.wrong, made.rank.findings.compared) == (0, 693 * 8192 * len(made.made))


def test_a_flipped_bit_is_reported_with_core_copy_byte_and_bits(program: ModuleType) -> None:
    made = crew(program, Faulty(1, 40))
    assert made.rank.findings.wrong == 2
    first = made.rank.findings.problems[0]
    assert "of 65,536 bytes on core " in first["what"]
    assert first["what"].endswith("byte 24 (1 of 8,192 words wrong)")
    assert first["got"].endswith("(wrong bits 0x100)")


def test_every_copy_changes_every_bit_whatever_the_pattern(program: ModuleType) -> None:
    core = program.Core(np, core=0, size=4096, seed=1)
    patterns = set()
    for _ in range(10):
        core.fill()
        assert core.is_whole()
        patterns.add(core.sources[0].tobytes())
        core.copy(0)
        before = core.target.copy()
        assert core.copy(1)
        assert ((before ^ core.target) == np.uint64(0xFFFFFFFFFFFFFFFF)).all()
    assert len(patterns) == 9  # the second random one differs from the first, and a stripe comes a second time


def test_a_buffer_that_goes_bad_by_itself_is_seen(program: ModuleType) -> None:
    core = program.Core(np, core=0, size=4096, seed=1)
    core.fill()
    core.sources[1][7] ^= np.uint64(1)
    assert not core.is_whole()


def test_the_budget_ends_the_copies_and_the_fewest_are_told(program: ModuleType) -> None:
    made = crew(program, np, until_s=0.0)
    assert set(made.made.values()) == {0}
