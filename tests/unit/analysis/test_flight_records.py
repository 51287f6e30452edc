"""Which rank the others wait for, by the numbers of the calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.analysis import nccl_diagnostics
from clusterctl.analysis.flight_records import Behind, behind, behind_by_ras
from clusterctl.analysis.rank_places import Place
from clusterctl.analysis.stall import RankSight, judge
from clusterctl.model.job_outcome import FlightGroup
from factory import captured_ras

WAITS = FlightGroup(group="0", last=1042, waits=1042, call="all_reduce", sizes="[[4]]")
GONE_ON = FlightGroup(group="0", last=1041)


def group(**more: object) -> FlightGroup:
    return WAITS.model_copy(update=more)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({2: GONE_ON}, "has not called all_reduce #1042"),
        ({2: group(last=1042, waits=1040)}, "is still in a call before all_reduce #1042"),
        ({2: group(call="broadcast")}, "has called something else than all_reduce #1042"),
        ({2: group(sizes="[[8]]")}, "has called something else than all_reduce #1042"),
        ({}, None),
        (dict.fromkeys(range(2, 6), GONE_ON), None),
        ({2: group(last=1050, waits=1042)}, None),
    ],
)
def test_a_rank_that_is_set_apart_is_named(odd: dict[int, FlightGroup], words: str | None) -> None:
    found = behind({rank: (odd.get(rank, WAITS),) for rank in range(8)})
    assert found == (None if words is None else Behind((2,), words, "all_reduce #1042"))


def test_two_groups_that_tell_of_different_ranks_tell_nothing() -> None:
    other = group(group="1")
    late = GONE_ON.model_copy(update={"group": "1"})
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 5 else late) for rank in range(8)}
    assert behind(flights) is None
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 2 else late) for rank in range(8)}
    found = behind(flights)
    assert found is not None
    assert found.ranks == (2,)


def test_the_sentence_has_the_number_of_the_call_and_the_place_of_the_rank() -> None:
    place = Place("torch.cuda.synchronize", "train (train.py:30)")
    ranks = [RankSight(rank, f"node{rank // 2 + 1}", now=place, before=place) for rank in range(8)]
    found = judge(ranks, behind=behind({rank: (WAITS if rank != 5 else GONE_ON,) for rank in range(8)}))
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == ("behind", ("node3",), (5,))
    assert found.sentence == (
        "node3 rank 5 has not called all_reduce #1042 and is in train (train.py:30), 7 others wait in all_reduce #1042"
    )


# --- what NCCL's RAS tells of a job that stands still: answers of one GPU's ranks, and a composed one ---


COMPOSED = Path(__file__).parents[2] / "data" / "nccl_ras" / "two_behind.txt"
RANKS = {("10.0.0.1" if rank < 4 else "10.0.0.2", 100 + rank): rank for rank in range(8)}


def late() -> list[str]:
    """Return the answer of a job whose rank 2 stays away; it becomes the process of rank 1 among eight."""
    (answer,) = captured_ras("late").answers
    return answer.replace("process 1095", "process 101").splitlines()


def lines() -> list[str]:
    return COMPOSED.read_text(encoding="utf-8").splitlines()


def rank_of(node: str, pid: int) -> int | None:
    return RANKS.get((node, pid))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("late", [Behind((2,), "has not launched AllReduce #9, by NCCL's RAS", "AllReduce #9")]),
        ("stopped", [None, Behind((0,), "does not answer NCCL's RAS", "")]),
    ],
)
def test_the_rank_that_nccl_itself_told_of_on_a_gpu_is_named(name: str, found: list[Behind | None]) -> None:
    """Before a rank was stopped nothing was wrong, so none is named then."""
    captured = captured_ras(name)
    told = [
        behind_by_ras(answer.splitlines(), lambda node, pid: captured.ranks.get(pid) if node == "10.0.0.1" else None, 3)
        for answer in captured.answers
    ]
    assert told == found
    assert told[-1] is not None
    assert told[-1].ranks == (captured.culprit,)


@pytest.mark.parametrize(("node", "rank"), [("10.0.0.1", 1), ("10.0.0.2", 5)])
def test_a_process_is_known_by_its_number_and_its_node(node: str, rank: int) -> None:
    text = captured_ras("stopped").answers[1].replace("rocess 924 on node 10.0.0.1", f"rocess 924 on node {node}")
    told = behind_by_ras(text.splitlines(), lambda place, _pid: {"10.0.0.1": 1, "10.0.0.2": 5}[place], 8)
    assert told == Behind((rank,), "does not answer NCCL's RAS", "")


def test_two_that_lag_in_two_communicators_are_named() -> None:
    told = behind_by_ras(lines(), rank_of, 8)
    assert told is not None
    assert told.ranks == (2, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: [line.replace("process 101", "process 999") for line in one],
        lambda one: [line.replace("2 ranks", "1 ranks") for line in one if "Rank 2 has" not in line],
        lambda one: [line.replace("operation 8", "operation 10") for line in one],
        lambda _one: ["No communicator data collected!", "  Rank 1 has launched up to operation 3 -- GPU 1"],
        lambda _one: ["ERROR: internal error", "", "\0" * 40],
        lambda _one: [],
    ],
)
def test_an_answer_that_sets_no_known_rank_apart_names_none(change: object) -> None:
    assert behind_by_ras(change(late()), rank_of, 8) is None  # type: ignore[operator]


def test_more_than_half_of_the_ranks_are_not_the_few() -> None:
    assert behind_by_ras(lines(), rank_of, 4) is None


def test_two_communicators_that_name_different_ranks_name_none() -> None:
    text = "\n".join(lines()).rpartition("  Rank 3 -- GPU 3")
    other = f"{text[0]}  Rank 4 -- GPU 0 managed by process 104 on node 10.0.0.2\n"
    assert behind_by_ras(other.splitlines(), rank_of, 8) is None


# --- what the report of NCCL's own diagnostics says; the reports are composed (``tests/data/nccl_diagnostics``) ---


DATA = Path(__file__).parents[2] / "data" / "nccl_diagnostics"


def report(name: str) -> nccl_diagnostics.Diagnostics:
    return nccl_diagnostics.read((DATA / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def test_a_report_without_a_finding_praises() -> None:
    found = report("healthy")
    assert (found.faults, found.notes, found.pairs) == ((), (), 24)
    assert found.praise == "NCCL's own diagnostics: P2P is right for 24 peer accesses, no finding of 7 checks"


@pytest.mark.parametrize(
    ("name", "ranks", "words", "cure"),
    [
        ("link", (1, 3), "2 accesses between GPUs over NVL failed (write mismatch)", "nvidia-smi topo -p2p n"),
        ("gpu", (2,), "5 accesses between GPUs over PIX failed, all with this rank's GPU (read mismatch)", "ACS"),
        ("import", (4, 5), "an access between two GPUs over PHB failed (peer-memory import failed)", "containers"),
        ("nvlink", (6,), "NVLinks of the GPU are not active", "nvidia-smi nvlink -s"),
    ],
)
def test_a_fault_names_its_ranks_and_a_cure(name: str, ranks: tuple[int, ...], words: str, cure: str) -> None:
    (fault,) = report(name).faults
    assert (fault.ranks, fault.words) == (ranks, f"NCCL's diagnostics: {words}")
    assert cure in fault.cure
    assert fault.line


def test_what_differs_or_could_not_run_is_a_note_and_no_fault() -> None:
    found = report("notes")
    assert found.faults == ()
    assert [note.partition(":")[0] for note in found.notes] == [
        "GPU inventory",
        "CUDA driver version",
        "ECC",
        "NVLink",
        "NCCL environment",
        "NCCL environment",
        "Xid/SXid",
    ]
    assert "NCCL_IB_HCA=mlx5_0 on rank(s) {0,1,2,3}" in found.notes[4]
    assert not [note for note in found.notes if "NCCL_DEBUG_FILE" in note], "the check itself sets it"
    (unavailable,) = report("import").notes
    assert unavailable.startswith("p2p: destination buffer unavailable"), "the access was not tried"


def test_links_that_are_down_on_most_ranks_belong_to_the_kind_of_machine() -> None:
    found = report("no-bridge")
    assert (found.faults, len(found.notes)) == ((), 1)


def test_an_xid_of_the_hardware_names_its_host() -> None:
    found = report("xid")
    assert [(one.host, one.words) for one in found.faults] == [
        ("node2", "NCCL's diagnostics: Xid 79 came up during the check"),
        ("node2", "NCCL's diagnostics: SXid 20034 came up during the check"),
    ]
    assert [note[:6] for note in found.notes] == ["Xid 31", "Xid 48"]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["NCCL DIAG", "NCCL DIAG [INFO]", "NCCL DIAG [OK] ", "NCCL DIAG [FATAL] p2p: write mismatch srcRank=1"],
        ["a:1 NCCL DIAG [INFO] p2p: write mismatch srcRank=x dstRank=y path=NVL"],
        ["a:1 NCCL DIAG [INFO] NVLink: inactive link(s) on rank(s) {} across 8 ranks", "\0" * 99],
        ["a:1 NCCL DIAG [INFO] a check of a later release: something differs on rank(s) {1}"],
    ],
)
def test_unknown_words_are_never_a_fault(lines: list[str]) -> None:
    assert nccl_diagnostics.read(lines).faults == ()


def test_numbers_of_any_length_end_nothing() -> None:
    nine = "9" * 5000
    for words in (
        f"p2p: write mismatch srcRank={nine} x dstRank=1 x path=NVL",
        f"p2p: verified P2P access in both directions ({nine} peer accesses)",
        f"NVLink: inactive link(s) on rank(s) {{{nine}}} across {nine} ranks",
        f"NVLink: inactive link(s) on rank(s) {{1}} (N={nine}) across 8 ranks",
    ):
        assert nccl_diagnostics.read([f"a:1 NCCL DIAG [INFO] {words}"]).pairs == 0
