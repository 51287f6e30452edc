"""What the report of NCCL's own diagnostics says; the reports are composed (``tests/data/nccl_diagnostics``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.analysis import nccl_diagnostics

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
