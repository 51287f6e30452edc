"""Read the report of NCCL's own diagnostics (2.31 and later): which paths between GPUs fail, and what ranks differ in.

NVIDIA's user guide documents both kinds under "Troubleshooting": "Diagnostics" has ``NCCL_RUN_DIAGNOSTICS``, which
moves data between each pair of GPUs, and "RAS Diagnostics" has ``NCCL_RUN_RAS_DIAGNOSTICS``, which compares ranks. The
guide fixes the prefix, the tags ``[OK]`` and ``[INFO]``, the names of the checks and the form of rank lists. The words
of single findings are those of NCCL's sources (``src/diagnostics/p2p.cc``, ``src/ras/diagnostics_*.cc``). A finding
with other words is a note, never a fault. Ranks are those of a communicator.

``make test-gpu`` imports this module, so it needs the standard library alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MARK = "NCCL DIAG "
_OWN = frozenset({"NCCL_DEBUG_FILE", "NCCL_HOSTID"})  # a check sets them differently for its ranks
_MOST_TEXT = 160  # of a note
_LONGEST = 2048  # characters of a line; some patterns take long on long texts
_LINE = re.compile(rf"{MARK}\[(?P<tag>OK|INFO)\]\s*(?P<words>.*\S)")
_PAIR = re.compile(
    r"p2p: (?P<what>[\w /-]+?) srcRank=(?P<source>[0-9]{1,9}) .*?dstRank=(?P<target>[0-9]{1,9}) .*?path=(?P<path>\w+)"
    r"(?:.*? reason=(?P<reason>\w+))?"
)
_SUMMARY = re.compile(r"p2p: (?:verified P2P access .*\((?P<all>[0-9]{1,9}) peer|only [0-9]+/[0-9]+ )")
_DAMAGED = ("write mismatch", "read mismatch", "peer-memory import failed", "launch/check failed")
_INACTIVE = re.compile(r"NVLink: inactive link\(s\) on rank\(s\) ")
_ACROSS = re.compile(r"across (?P<size>[0-9]{1,9}) ranks")
_RANKS = re.compile(r"\{(?P<ranks>[0-9]{1,9}(?:,[0-9]{1,9})*)(?:,\.\.\.)?\}(?: \(N=(?P<count>[0-9]{1,9})\))?")
_EVENT = re.compile(r"(?P<kind>S?Xid) (?P<code>\d+) detected .*? on host (?P<host>\S+?)\.\s")
_APPLICATION, _PRE_AMPERE, _NOT_FATAL = "Restart the affected", "pre-Ampere GPU", "reported Non-fatal"
_VARIABLE = re.compile(r"NCCL environment: (?:(?P<name>\w+)=|mismatch across .* for (?P<only>\w+)$)")
_NOTICE = "p2p: temporarily enabled"  # what it does to a process with several GPUs is no finding
_COUNT_OF_VARIABLES = re.compile(r"NCCL environment: \d+ NCCL_\* env var\(s\) differ")
_CURES = {
    "NVL": "see 'nvidia-smi topo -p2p n' and 'nvidia-smi nvlink -e' there",
    "NVB": "see 'nvidia-smi topo -p2p n' and 'nvidia-smi nvlink -e' there",
    "NET": "see 'nvidia-imex-ctl -N' and /dev/nvidia-caps-imex-channels there",
}
_CURE_PCI = "see 'nvidia-smi topo -p2p p' there, and that ACS and IOMMU are off"
_CURE_IMPORT = "see that containers of the ranks share a process namespace and /dev/shm"


@dataclass(frozen=True)
class DiagnosticFault:
    """What is broken: ranks of the communicator, or the node where NCCL names it; words without names, and a cure."""

    words: str
    cure: str
    ranks: tuple[int, ...] = ()
    host: str = ""
    line: str = ""


@dataclass(frozen=True)
class Diagnostics:
    """What a report says; ``pairs`` counts the accesses between GPUs that were proved right, 0 where none was tried."""

    pairs: int = 0
    clean: tuple[str, ...] = ()  # checks without a finding
    faults: tuple[DiagnosticFault, ...] = ()
    notes: tuple[str, ...] = ()
    told: bool = False  # whether there was a report at all

    @property
    def praise(self) -> str:
        """What it proves, '' where it proves nothing."""
        words = [f"P2P is right for {self.pairs} peer accesses"] if self.pairs else []
        others = [name for name in self.clean if name != "p2p"]
        words += [f"no finding of {len(others)} check{'s' if len(others) > 1 else ''}"] if others else []
        return f"NCCL's own diagnostics: {', '.join(words)}" if words else ""


def read(lines: Iterable[str]) -> Diagnostics:
    """Return what the lines of a job say of NCCL's diagnostics; other lines are passed over."""
    pairs, told = 0, False
    clean: list[str] = []
    faults: list[DiagnosticFault] = []
    notes: list[str] = []
    failed: list[re.Match[str]] = []
    for line in lines:
        told |= MARK in line
        match = _LINE.match(line[at : at + _LONGEST]) if (at := line.find(MARK)) >= 0 else None
        if match is None:
            continue
        words = match["words"]
        summary, pair = _SUMMARY.match(words), _PAIR.match(words)
        if summary is not None and summary["all"]:
            pairs += int(summary["all"])
        if match["tag"] == "OK":
            clean.append(words.partition(":")[0])
        elif pair is not None and pair["what"] in _DAMAGED:
            failed.append(pair)
        elif (found := _inactive(words) or _event(words)) is not None:
            faults.append(found)
        elif summary is None and not words.startswith(_NOTICE) and not _is_own_setting(words):
            notes.append(words[:_MOST_TEXT])
    return Diagnostics(
        pairs, tuple(dict.fromkeys(clean)), (*_pairs(failed), *faults), tuple(dict.fromkeys(notes)), told
    )


def ranks_of(words: str) -> tuple[int, ...]:
    """Return the ranks that a finding lists, as many as NCCL shows."""
    return tuple(int(rank) for match in _RANKS.finditer(words) for rank in match["ranks"].split(","))


def _pairs(failed: Sequence[re.Match[str]]) -> Iterator[DiagnosticFault]:
    """Yield one fault for each cause; a rank that is in all pairs of several is named alone."""
    causes: dict[tuple[str, str], list[re.Match[str]]] = {}
    for one in failed:
        causes.setdefault((one["what"], one["path"]), []).append(one)
    for (what, path), group in causes.items():
        ends = [tuple(sorted((int(one["source"]), int(one["target"])))) for one in group]
        count = Counter(rank for pair in set(ends) for rank in pair)
        shared = [rank for rank, number in count.items() if number == len(set(ends)) > 1]
        ranks = tuple(shared) if len(shared) == 1 else tuple(sorted(count))
        many = f"{len(group)} accesses between GPUs" if len(group) > 1 else "an access between two GPUs"
        common = ", all with this rank's GPU" if len(shared) == 1 else ""
        words = f"NCCL's diagnostics: {many} over {path} failed{common} ({what})"
        cure = _CURE_IMPORT if "import" in what and path not in _CURES else _CURES.get(path, _CURE_PCI)
        yield DiagnosticFault(words, cure, ranks, line=group[0].string[:_MOST_TEXT])


def _inactive(words: str) -> DiagnosticFault | None:
    """Return the few ranks whose NVLinks are down; links that are down on most ranks belong to the machines' kind."""
    size, listed = _ACROSS.search(words), _RANKS.search(words)
    if not _INACTIVE.match(words) or size is None or listed is None:
        return None
    ranks = ranks_of(words)
    if int(listed["count"] or len(ranks)) * 2 >= int(size["size"]):
        return None
    cure = "see 'nvidia-smi nvlink -s' and 'clusterctl doctor' there"
    return DiagnosticFault("NCCL's diagnostics: NVLinks of the GPU are not active", cure, ranks, line=words)


def _event(words: str) -> DiagnosticFault | None:
    """Return an Xid or SXid that came up during the job, but for those of an application."""
    match = _EVENT.match(words)
    if match is None or any(part in words for part in (_APPLICATION, _PRE_AMPERE, _NOT_FATAL)):
        return None
    told = f"NCCL's diagnostics: {match['kind']} {match['code']} came up during the check"
    return DiagnosticFault(told, "'clusterctl doctor' says what to do", host=match["host"], line=words[:_MOST_TEXT])


def _is_own_setting(words: str) -> bool:
    """Whether a line counts variables, which the lines before it name, or is of one that the check itself sets."""
    match = _VARIABLE.match(words)
    named = (match["name"] or match["only"]) if match is not None else ""
    return bool(_COUNT_OF_VARIABLES.match(words)) or named in _OWN or bool(match is not None and match["only"])
