from __future__ import annotations

import random

import pytest
from clusterctl.analysis import step_times
from clusterctl.analysis.step_times import StepLine, StepReport


def job(
    ranks: int, own_s: dict[int, float] | None = None, *, reports: int = 20, noise: float = 0.05, seed: int = 1
) -> dict[int, list[StepReport]]:
    """Ranks in lock-step: all take the step of the slowest, and the others wait for it."""
    chance = random.Random(seed)  # noqa: S311 - noise of a simulation
    found: dict[int, list[StepReport]] = {rank: [] for rank in range(ranks)}
    for _ in range(reports):
        own = {rank: (own_s or {}).get(rank, 0.02) * chance.lognormvariate(0, noise) for rank in found}
        step = max(own.values()) + 0.01
        for rank, each in found.items():
            each.append(StepReport(rank, f"node{rank // 2 + 1}", 10, 10 * step, 10 * (step - own[rank])))
    return found


@pytest.mark.parametrize("ranks", [3, 4, 8, 64])
def test_the_late_rank_is_named_and_no_other(ranks: int) -> None:
    pace = step_times.judge(job(ranks, {2: 0.06}))
    assert [(one.rank, one.host) for one in pace.late] == [(2, "node2")]
    assert pace.late[0].own_s == pytest.approx(0.06, rel=0.1)
    assert pace.late[0].usual_s == pytest.approx(0.02, rel=0.1)
    assert pace.step_s == pytest.approx(0.07, rel=0.1)


def test_all_ranks_of_a_late_node_are_named() -> None:
    assert {one.rank for one in step_times.judge(job(16, {4: 0.06, 5: 0.05})).late} == {4, 5}


def test_healthy_ranks_are_hardly_ever_named() -> None:
    named = [step_times.judge(job(8, noise=0.2, seed=seed)).late for seed in range(300)]
    assert sum(map(bool, named)) <= 9, "three in a hundred"
    fine = step_times.judge(job(8)).finest
    assert fine is not None
    assert 0.05 <= fine < 0.6


def test_a_rank_that_costs_no_noticeable_part_of_the_step_is_not_late() -> None:
    reports = job(8, {3: 0.04})
    long = {
        rank: [one._replace(whole_s=one.whole_s + 10, waited_s=one.waited_s + 10) for one in each]
        for rank, each in reports.items()
    }
    assert step_times.judge(reports).late
    assert not step_times.judge(long).late


def test_what_cannot_be_judged_is_not_judged() -> None:
    assert "2 ranks are too few" in step_times.judge(job(2, {1: 0.2})).unknown
    assert "sent 5 of the 6 reports" in step_times.judge(job(4, {1: 0.2}, reports=5)).unknown
    silent = {rank: [one._replace(waited_s=0.0) for one in each] for rank, each in job(4, {1: 0.2}).items()}
    assert "with pace.waiting()" in step_times.judge(silent).unknown
    assert step_times.judge(silent).late == ()


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("  3%|#         | 30/1000 [00:15<08:05,  2.00it/s, loss=2.31]", 0.5),
        (" 50%|#####     | 5/10 [00:12<00:12,  2.50s/it]", 2.5),
        ("157/157 [==============================] - 7s 45ms/step - loss: 0.4", 0.045),
        ("10/20 [=========>..........] - ETA: 20s - 2s/step - loss: 0.4", 2.0),
        ("INFO:tensorflow:global_step/sec: 12.5", 0.08),
        (
            " iteration 100/ 5000 | consumed samples: 800 | elapsed time per iteration (ms): 512.5 | loss: 6.1E+00",
            0.5125,
        ),
        ("iter 100: loss 2.3301, time 123.45ms, mfu 12.3%", 0.12345),
        ("step 100 loss 2.1 time 0.75 s", 0.75),
        ("step_time=0.512s", 0.512),
        ("Step time: 512 ms", 0.512),
        ("batch time (ms): 80 ms", 0.08),
    ],
)
def test_the_usual_lines_of_training_loops_are_read(line: str, seconds: float) -> None:
    found = step_times.read(line)
    assert found is not None
    assert (round(found.whole_s, 6), found.waited_s) == (seconds, None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "epoch 3 took 512 s",
        "step 100 loss 2.1",
        "time 12:30:01 step 7",
        "0.00it/s",
        "?it/s",
        "copied 12.5 MB/s",
        "Epoch: [0][10/5005]\tTime  0.512 ( 0.600)\tData  0.001 ( 0.050)",
        "x" * 5000 + " 2.00it/s",
    ],
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert step_times.read(line) is None


def test_the_groups_of_a_pattern_are_read_in_their_unit() -> None:
    pattern = step_times.compiled(r"r(?P<rank>\d+) s(?P<step>\d+): (?P<milliseconds>\S+) ms, (?P<waiting>\S+) ms")
    assert step_times.read("r3 s17: 500 ms, 250 ms", (pattern,)) == StepLine(0.5, 0.25, 17, 3)
    for line in ("r3 s17: 500 ms, 900 ms", "r3 s17: 0 ms, 0 ms", "r3 s17: nan ms, 1 ms", "r3 s17: long ms, 1 ms"):
        assert step_times.read(line, (pattern,)) is None
    assert step_times.read("r3 s17: 500 ms, - ms", (pattern,)) == StepLine(0.5, None, 17, 3)
    rate = step_times.compiled(r"(?P<per_second>[\d.]+)/s, waited (?P<waiting>[\d.]+) s")
    assert step_times.read("4/s, waited 0.1 s", (rate,)) == StepLine(0.25, 0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(?P<seconds>", "the regular expression is invalid: missing"),
        ("(?P<seconds>x)(?P<seconds>y)", "the regular expression is invalid: redefinition of group name"),
        (r"took ([\d.]+) s", "it needs one of the groups seconds, milliseconds, per_second for the time of a step"),
        ("(?P<seconds>a)(?P<milliseconds>b)", "it needs one of the groups"),
        ("(?P<second>a)", "the group 'second' is unknown; the groups are seconds, milliseconds"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^(the|it) ") as raised:
        step_times.compiled(text)
    assert str(raised.value).startswith(words)
