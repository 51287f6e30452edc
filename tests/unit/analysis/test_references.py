from __future__ import annotations

import math
import random

import pytest
from clusterctl.analysis import references
from clusterctl.model.results import Figure, Reference, Verdict
from clusterctl.suite import HistoryOptions, ReferenceEntry
from clusterctl.validation.checks import registry

ALLREDUCE = Figure(
    quantity="bus_bandwidth",
    operation="allreduce",
    backend="nccl",
    size_bytes=64 << 20,
    value=1.1e9,
    unit="B/s",
    better="higher",
)
LATENCY = Figure(quantity="latency", size_bytes=8, value=22.0, unit="us", better="lower", nodes=("node3",))


def entry(**keys: object) -> ReferenceEntry:
    given = {"check": "nccl_sweep", "quantity": "bus_bandwidth", "value": 1.0e9, "unit": "B/s", "lower": -0.1}
    return ReferenceEntry.model_validate({**given, **keys})


def found(*entries: ReferenceEntry, figure: Figure = ALLREDUCE, nodes: int = 4, ranks: int = 32) -> float | None:
    reference = references.find(entries, "nccl_sweep", figure, nodes, ranks)
    return reference.value if reference else None


# --- the user's file --------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_any() -> None:
    assert found(entry()) == 1.0e9
    assert found(entry(operation="allreduce", size="64 MiB", nodes=4, ranks=32, backend="nccl")) == 1.0e9
    for other in (
        {"operation": "broadcast"},
        {"size": "32 MiB"},
        {"size": 0},
        {"nodes": 2},
        {"ranks": 8},
        {"backend": "mpi"},
        {"algorithm": "ring"},
        {"check": "collectives"},
        {"quantity": "time"},
        {"unit": "s"},
    ):
        assert found(entry(**other)) is None, other
    assert references.find((), "nccl_sweep", ALLREDUCE, 4, 32) is None


def test_the_entry_that_gives_most_speaks_and_of_equals_the_last() -> None:
    general, sized = entry(value=1e9), entry(value=2e9, size="64 MiB")
    both, again = entry(value=3e9, size="64 MiB", nodes=4), entry(value=4e9, size="64 MiB", ranks=32)
    assert found(general, sized) == found(sized, general) == 2e9
    assert found(both, sized, general) == 3e9
    assert found(both, again) == 4e9
    assert found(again, both) == 3e9


# --- the history ------------------------------------------------------------------------------------------------------


def test_history_speaks_from_its_fewest_runs_on() -> None:
    options = HistoryOptions(runs=20, at_least=5)
    values = [1.2e9, 1.25e9, 1.26e9, 1.24e9, 1.25e9]
    assert references.from_history(values[:4], ALLREDUCE, options) is None
    reference = references.from_history(values, ALLREDUCE, options)
    assert reference is not None
    assert reference.value == pytest.approx(1.25e9)
    assert (reference.source, reference.upper) == ("history", None)
    assert reference.citation == "median of the last 5 good runs"


def test_a_figure_with_no_bad_side_has_no_history() -> None:
    values = [1.0] * 9
    assert references.from_history(values, ALLREDUCE.model_copy(update={"better": "none"}), HistoryOptions()) is None
    assert references.from_history([*values, 0.0], ALLREDUCE, HistoryOptions()) is None
    assert references.from_history([*values, -1.0], ALLREDUCE, HistoryOptions()) is None


def test_equal_runs_leave_the_floor() -> None:
    reference = references.from_history([100.0] * 20, ALLREDUCE, HistoryOptions(floor=0.1))
    assert reference is not None
    assert reference.lower == pytest.approx(1 / 1.1 - 1)
    slower = references.from_history([100.0] * 20, LATENCY, HistoryOptions(floor=0.1))
    assert slower is not None
    assert (slower.lower, slower.upper) == (None, pytest.approx(0.1))


def test_a_tenth_too_slow_is_as_far_for_a_time_as_for_a_bandwidth() -> None:
    times = [10.0, 10.3, 9.8, 10.1, 10.9, 9.5, 10.2]
    lower = references.from_history([1 / time for time in times], ALLREDUCE, HistoryOptions())
    upper = references.from_history(times, LATENCY, HistoryOptions())
    assert lower is not None
    assert upper is not None
    assert lower.value == pytest.approx(1 / upper.value)
    assert 1 + (lower.lower or 0) == pytest.approx(1 / (1 + (upper.upper or 0)))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_units_of_the_values_change_nothing(scale: float) -> None:
    values = [0.9, 1.0, 1.1, 1.05, 0.97, 1.02]
    plain = references.from_history(values, ALLREDUCE, HistoryOptions())
    scaled = references.from_history([value * scale for value in values], ALLREDUCE, HistoryOptions())
    assert plain is not None
    assert scaled is not None
    assert scaled.lower == pytest.approx(plain.lower)


def test_wild_values_give_a_limit_that_can_be_written() -> None:
    wild = [10.0**power for power in range(-150, 150, 30)]
    reference = references.from_history(wild, LATENCY, HistoryOptions())
    assert reference is not None
    assert math.isfinite(reference.upper or math.inf)
    assert Reference.model_validate_json(reference.model_dump_json()) == reference
    falling = references.from_history(wild, ALLREDUCE, HistoryOptions())
    assert falling is not None
    assert -1 <= (falling.lower or 0) <= 0


def noise(generator: random.Random, spread: float, tails: str) -> float:
    """Return a factor around 1: lognormal, or with the heavy tails of Student's t with three degrees of freedom."""
    normal = generator.gauss(0, 1)
    if tails == "heavy":
        normal /= math.sqrt(sum(generator.gauss(0, 1) ** 2 for _ in range(3)) / 3)
    return math.exp(spread * normal)


@pytest.mark.parametrize("tails", ["normal", "heavy"])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("runs", [5, 9, 20])
def test_healthy_nights_raise_no_alarm_whatever_the_noise(runs: int, spread: float, tails: str) -> None:
    """A FAIL takes two runs of a night beyond the history of the same figure: at most one in 100 healthy nights."""
    generator = random.Random(f"{runs}{spread}{tails}")  # noqa: S311 - a seed that does not change
    figures, nights, alarms = 30, 60, 0
    sources = references.Sources("pairs", 4, 4, history=lambda _figure: past, figures=figures)
    for _ in range(nights):
        failed = []
        for _ in range(figures):
            past = [noise(generator, spread, tails) for _ in range(runs)]
            reference = sources(ALLREDUCE)
            assert reference is not None
            twice = [ALLREDUCE.model_copy(update={"value": noise(generator, spread, tails)}) for _ in range(2)]
            failed.append(all(references.compare(one, reference).verdict is Verdict.FAIL for one in twice))
        alarms += any(failed)
    assert alarms <= 1


@pytest.mark.parametrize(
    ("runs", "spread", "slowdown", "least"), [(5, 0.01, 0.5, 0.99), (9, 0.01, 0.8, 0.99), (20, 0.03, 0.7, 0.99)]
)
def test_a_slower_cluster_is_found(runs: int, spread: float, slowdown: float, least: float) -> None:
    generator = random.Random(f"{runs}{spread}{slowdown}")  # noqa: S311 - a seed that does not change
    found = 0
    for _ in range(200):
        past = [noise(generator, spread, "normal") for _ in range(runs)]
        reference = references.from_history(past, ALLREDUCE, HistoryOptions(), 0.01 / 30)
        assert reference is not None
        slow = ALLREDUCE.model_copy(update={"value": slowdown * noise(generator, spread, "normal")})
        found += references.compare(slow, reference).verdict is Verdict.FAIL
    assert found >= least * 200


def test_a_single_outlier_among_good_runs_does_not_hide_a_halved_bandwidth() -> None:
    past = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 0.4, 1.01, 1.0, 0.99, 1.0]
    reference = references.from_history(past, ALLREDUCE, HistoryOptions(), 0.001)
    assert reference is not None
    half = ALLREDUCE.model_copy(update={"value": 0.5})
    assert references.compare(half, reference).verdict is Verdict.FAIL


def test_what_came_twice_on_good_runs_is_no_news() -> None:
    """Latencies of a healthy cluster that has two states, as measured on four containers on two cores."""
    past = [13.3, 13.4, 13.2, 13.3, 13.3, 13.4, 17.0, 13.3, 13.3, 13.2, 17.2, 13.3, 13.4, 13.3, 13.3, 13.2, 13.3, 46.6]
    reference = references.from_history(past, LATENCY, HistoryOptions(), 0.001)
    assert reference is not None
    states = [LATENCY.model_copy(update={"value": value}) for value in (16.8, 19.0)]
    assert [references.compare(one, reference).verdict for one in states] == [Verdict.PASS, Verdict.FAIL]


# --- comparing --------------------------------------------------------------------------------------------------------


def reference(**keys: object) -> Reference:
    return Reference.model_validate({"value": 1.25e9, "lower": -0.1, "unit": "B/s", "source": "file", **keys})


def test_the_words_say_what_by_how_much_and_who_says_so() -> None:
    history = reference(source="history", citation="median of the last 9 good runs")
    comparison = references.compare(ALLREDUCE, history)
    assert comparison.words == (
        "nccl allreduce of 64 MiB: 1.1 GB/s of bus bandwidth, 12 % below 1.25 GB/s (median of the last 9 good runs)"
    )
    assert comparison.verdict is Verdict.FAIL
    words = references.compare(LATENCY, reference(value=20, unit="us", lower=None, upper=0.2, citation="a.yml")).words
    assert words == "node3: latency of 8 B: 22 us, 10 % above 20 us (a.yml)"
    assert references.compare(LATENCY, reference(value=2, unit="us", lower=None, upper=0.2)).words.startswith(
        "node3: latency of 8 B: 22 us, 11 times 2 us"
    )
    assert "as 22 us" in references.compare(LATENCY, reference(value=22, unit="us", lower=None, upper=0.2)).words


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.9e9, "PASS"), (0.899e9, "FAIL"), (1.1e9, "PASS"), (1.11e9, "FAIL"), (0.0, "FAIL")]
)
def test_both_limits_judge(value: float, verdict: str) -> None:
    figure = ALLREDUCE.model_copy(update={"value": value})
    compared = references.compare(figure, reference(value=1e9, lower=-0.1, upper=0.1001))
    assert compared.verdict.value == verdict


def test_no_limit_judges_nothing() -> None:
    figure = ALLREDUCE.model_copy(update={"value": 1.0})
    assert references.compare(figure, reference(lower=None)).verdict is Verdict.PASS


def test_units_are_turned_and_other_kinds_refused() -> None:
    time = Figure(quantity="time", value=30.0, unit="us", better="lower")
    compared = references.compare(time, reference(value=20e-6, unit="s", lower=None, upper=0.1))
    assert compared.verdict is Verdict.FAIL
    assert (compared.reference.value, compared.reference.unit) == (pytest.approx(20.0), "us")
    with pytest.raises(ValueError, match="B/s is another unit than us"):
        references.compare(time, reference())


def test_samples_are_not_kept_twice() -> None:
    figure = ALLREDUCE.model_copy(update={"samples": (1.0, 2.0)})
    assert references.compare(figure, reference()).figure.samples == ()


def test_a_scattered_night_is_no_proof_against_the_history_and_is_one_against_the_file() -> None:
    figure = ALLREDUCE.model_copy(update={"value": 1.0e9, "low": 0.7e9, "high": 1.3e9, "confidence": 0.95})
    assert references.compare(figure, reference(source="history")).verdict is Verdict.PASS
    assert references.compare(figure, reference(source="file")).verdict is Verdict.FAIL
    narrow = figure.model_copy(update={"low": 0.99e9, "high": 1.01e9})
    assert references.compare(narrow, reference(source="history")).verdict is Verdict.FAIL


# --- published figures ------------------------------------------------------------------------------------------------

H200 = references.MachineType("NVIDIA H200", nodes=1, gpus=8)
LARGE = ALLREDUCE.model_copy(update={"size_bytes": 16 << 30, "value": 4.2e11})


def test_a_published_figure_within_one_machine_judges() -> None:
    found = references.find_published(LARGE, H200)
    assert found is not None
    assert found.source == "published"
    assert "stas00/ml-engineering" in found.citation
    assert references.compare(LARGE, found).verdict is Verdict.FAIL
    azure = LARGE.model_copy(update={"value": 4.33e11})
    assert references.compare(azure, found).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": (16 << 30) - 4},
        {"operation": "broadcast"},
        {"quantity": "algorithm_bandwidth"},
        {"backend": "mpi"},
        {"algorithm": "collnet"},
        {"nodes": ("node1",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_key_of_a_published_figure_has_to_match(change: dict[str, object]) -> None:
    assert references.find_published(LARGE.model_copy(update=change), H200) is None


@pytest.mark.parametrize(
    "machine",
    [
        references.MachineType("NVIDIA H200", 1, 3),
        references.MachineType("NVIDIA H200", 2, 8),
        references.MachineType("NVIDIA H200 NVL", 1, 8),
        references.MachineType("NVIDIA GH200 480GB", 1, 8),
        references.MachineType("NVIDIA H100 PCIe", 2, 16),
        references.MachineType("", 1, 8),
    ],
    ids=lambda machine: f"{machine.gpu}-{machine.nodes}-{machine.gpus}",
)
def test_other_machines_have_other_figures(machine: references.MachineType) -> None:
    assert references.find_published(LARGE, machine) is None


def test_without_nvls_another_figure_speaks() -> None:
    plain, ring = (
        references.find_published(LARGE.model_copy(update={"algorithm": name}), H200) for name in ("NVLS", "Ring")
    )
    assert plain is not None
    assert ring is not None
    assert plain.value > 1.2 * ring.value


def test_figures_between_machines_and_of_small_messages_judge_nothing() -> None:
    for one in references.TABLE:
        figure = ALLREDUCE.model_copy(
            update={
                "operation": one.operation,
                "size_bytes": one.size_bytes,
                "value": 1.0,
                "algorithm": one.algorithms[0],
            }
        )
        names = references._MODELS[one.gpu]  # noqa: SLF001 - every row is reached under every name
        for name in names:
            found = references.find_published(figure, references.MachineType(name, one.nodes, one.gpus))
            assert found is not None
            assert found.value == one.bytes_per_s
            judged = references.compare(figure, found).verdict is Verdict.FAIL
            assert judged == (one.nodes == 1 and one.size_bytes >= 1 << 30)


# --- the order of the sources -----------------------------------------------------------------------------------------


def test_the_file_speaks_before_the_history_and_that_before_publications() -> None:
    entries = (entry(value=4e11, size="16 GiB"),)
    history = [4.7e11] * 9
    every = references.Sources("nccl_sweep", 1, 8, entries, "a.yml", lambda _figure: history, machine=H200)
    assert every(LARGE) == Reference(value=4e11, lower=-0.1, unit="B/s", source="file", citation="a.yml")
    no_file = references.Sources("nccl_sweep", 1, 8, (), history=lambda _figure: history, machine=H200)
    assert [one.source for one in [no_file(LARGE)] if one] == ["history"]
    young = references.Sources("nccl_sweep", 1, 8, (), history=lambda _figure: history[:2], machine=H200)
    assert [one.source for one in [young(LARGE)] if one] == ["published"]
    assert references.Sources("nccl_sweep", 1, 8)(LARGE) is None


def test_only_the_last_runs_count() -> None:
    options = HistoryOptions(runs=5, at_least=5)
    newest_first = [2.0] * 5 + [1.0] * 50
    sources = references.Sources("nccl_sweep", 1, 8, history=lambda _figure: newest_first, options=options)
    found = sources(ALLREDUCE)
    assert found is not None
    assert found.value == pytest.approx(2.0)


def test_the_references_of_a_file_reach_the_figures() -> None:
    own = registry.parse(
        "extends: nightly\nreferences:\n"
        "- {check: nccl_sweep, quantity: bus_bandwidth, size: 64 MiB, value: 1.2 GB/s, lower: -5 %}",
        "validation.yml",
    )
    sources = references.Sources("nccl_sweep", 4, 32, own.every_reference, own.path)
    found = sources(ALLREDUCE)
    assert found is not None
    assert references.compare(ALLREDUCE, found).words.endswith("8.3 % below 1.2 GB/s (validation.yml)")
