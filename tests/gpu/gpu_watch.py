"""Looks at a running job: NCCL's RAS while a rank is stopped, and the records of PyTorch's flight recorder.

And the places of GPUs and network cards, as the driver tells them. Python 3.9 and its standard library suffice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
for folder in ("roles/validation/files", "python"):
    sys.path.insert(0, str(ROOT / folder))

import flight_record  # noqa: E402 - it lies in a folder above, as those below
import nccl_log as ras_client  # noqa: E402
from clusterctl.analysis import rank_evidence  # noqa: E402 - it needs the standard library alone
from clusterctl.launch import flight_recorder  # noqa: E402

POLL_S = 0.5
SETTLE_S = 2.0
RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "RANK")
BEST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")  # of 'nvidia-smi topo -m'


RUNS = "RUNNING"  # RAS of a communicator that all of its ranks have joined


class Seen(NamedTuple):
    """What a look showed; lines and files are kept, since they are what the parsers were made for."""

    verdict: str
    reason: str
    lines: tuple[str, ...] = ()
    files: tuple[tuple[str, str | bytes], ...] = ()


def workers_of(pid: int, program: str, *, forked: bool = True) -> dict[int, int]:
    """Return the working process of each rank below a process.

    Args:
        pid: the launcher.
        program: the words by which a rank's process is known.
        forked: whether that is the child of one that runs the same program, as with the checks.
    """
    lines, parents = {}, {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                lines[int(place.name)] = (place / "cmdline").read_bytes().decode("utf-8", "replace")
                stat = (place / "stat").read_text(encoding="utf-8", errors="replace")
                parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found = {}
    for one, line in lines.items():
        above = parents.get(one, 0)
        if program in line and (lines.get(above) == line or not forked) and is_below(one, pid, parents):
            rank = rank_of(one)
            if rank is not None:
                found[rank] = one
    return found


def is_below(one: int, pid: int, parents: Mapping[int, int]) -> bool:
    """Whether a process descends from another."""
    for _step in range(64):
        if one in {pid, 0, 1}:
            return one == pid
        one = parents.get(one, 0)
    return False


def rank_of(pid: int) -> int | None:
    """Return the rank in a process's environment."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    known = dict(word.decode("utf-8", "replace").partition("=")[::2] for word in words if b"=" in word)
    return next((int(known[name]) for name in RANK_NAMES if known.get(name, "").isdigit()), None)


def ras(pid: int, program: str, ranks: int, environment: Mapping[str, str], until: float) -> Seen:
    """Stop one rank, and see whether NCCL's RAS and its parser name it; the rank goes on afterwards.

    Args:
        pid: the launcher.
        program: the words by which a rank's process is known.
        ranks: how many there are.
        environment: of the ranks, for ``NCCL_RAS_ADDR``.
        until: when to give up, by the monotonic clock.
    """
    workers: dict[int, int] = {}
    before, after = "", ""
    while time.monotonic() < until and RUNS not in before:
        workers = workers_of(pid, program)
        before = ras_client.said(environment) if len(workers) == ranks else ""
        time.sleep(POLL_S)
    if RUNS not in before:
        how = "RAS told of no communicator that runs" if before else "RAS did not answer"
        return Seen("ERROR", f"{how} while {len(workers)} of {ranks} ranks ran", tuple(before.splitlines()))
    numbers = {one: rank for rank, one in workers.items()}
    words = ""
    for rank in (ranks - 1, 0):  # the other one may be who answers
        os.kill(workers[rank], signal.SIGSTOP)
        try:
            time.sleep(SETTLE_S)
            after = ""
            while time.monotonic() < until and not (words := named(after, rank, workers[rank], numbers, ranks)):
                after = ras_client.said(environment)
                if not after:
                    break
                time.sleep(POLL_S)
        finally:
            os.kill(workers[rank], signal.SIGCONT)
        if after or words:
            break
    files = told("nccl-ras-stopped", workers, rank, (before, after))
    lines = (*before.splitlines(), *after.splitlines())
    if words:
        return Seen("PASS", words, lines, files)
    return Seen("FAIL", f"RAS answers, and rank {rank}, which was stopped, is not named", lines, files)


def ras_late(pid: int, program: str, ranks: int, environment: Mapping[str, str]) -> Seen:
    """See whether NCCL's RAS and its parser name the last rank, which has called a collective less than the others."""
    workers = workers_of(pid, program, forked=False)
    answer = ras_client.said(environment)
    if not answer:
        return Seen("ERROR", f"RAS did not answer while {len(workers)} of {ranks} ranks ran")
    lines, numbers = tuple(answer.splitlines()), {one: rank for rank, one in workers.items()}
    files = told("nccl-ras-late", workers, ranks - 1, (answer,))
    few = rank_evidence.behind_by_ras(lines, lambda _node, process: numbers.get(process), ranks)
    if few is not None and few.ranks == (ranks - 1,):
        return Seen("PASS", f"rank {ranks - 1}, which stays away, {few.words}", lines, files)
    return Seen("FAIL", f"RAS answers, and rank {ranks - 1}, which stays away, is not named", lines, files)


def told(
    name: str, workers: Mapping[int, int], rank: int, answers: tuple[str, ...]
) -> tuple[tuple[str, str | bytes], ...]:
    """Return what RAS said as a file to keep, with the process of each rank, and the rank that others wait for."""
    found = {"processes": {str(one): workers[one] for one in sorted(workers)}, "culprit": rank, "answers": answers}
    return ((f"{name}.json", json.dumps(found, indent=1) + "\n"),)


def named(answer: str, rank: int, pid: int, numbers: Mapping[int, int], ranks: int) -> str:
    """Return in words that the answer names the rank, '' where it does not."""
    lines = answer.splitlines()
    few = rank_evidence.behind_by_ras(lines, lambda _node, process: numbers.get(process), ranks)
    if few is not None and few.ranks == (rank,):
        return f"rank {rank}, which was stopped, {few.words}"
    is_told = any(re.search(rf"\bProcess {pid} on node \S+", line) for line in lines)
    few_enough = ranks < 3
    return f"RAS names the process of rank {rank}, which was stopped; of two ranks none is blamed" * (
        is_told and few_enough
    )


def flight_environment(job: str, release: str) -> dict[str, str]:
    """Return the variables of the flight recorder that ``clusterctl run`` gives to a release of PyTorch."""
    words = flight_recorder.exported(str(flight_record.folder(job)), release)
    return dict(word.split("=", 1) for word in words)


def flights(job: str, ranks: int, until: float) -> Seen:
    """Ask each rank for its record until all have written one that can be read."""
    found: dict[int, dict[str, Any]] = {}
    asked: set[int] = set()
    while time.monotonic() < until and len(found) < ranks:
        for rank in range(ranks):
            if rank not in found:
                asked |= {rank} if flight_record.request(job, rank) else set()
                record = flight_record.read(job, rank)
                if record is not None and (record.get("groups") or time.monotonic() + SETTLE_S > until):
                    found[rank] = record
        time.sleep(POLL_S)
    lines, files = tuple(str(found[rank]) for rank in sorted(found)), raw(job, "flight-record", ranks)
    wrong = [rank for rank, record in found.items() if not record.get("groups")]
    if wrong:
        why = found[wrong[0]].get("problem", "it has no group")
        return Seen("FAIL", f"the record of rank {wrong[0]} cannot be read: {why}", lines, files)
    missing = [rank for rank in range(ranks) if rank not in found]
    if missing:
        how = "was asked and wrote no record" if missing[0] in asked else "has opened no pipe"
        return Seen("ERROR", f"rank {missing[0]} {how}", lines, files)
    calls = sum(group["last"] for record in found.values() for group in record["groups"])
    return Seen("PASS", f"{ranks} records with {calls} calls are read", lines, files)


def late(job: str, ranks: int, until: float) -> Seen:
    """Ask all ranks for their records until these name the last rank, which stays away from a collective."""
    found: dict[int, dict[str, Any]] = {}
    while time.monotonic() < until:
        for rank in range(ranks):
            flight_record.request(job, rank)
        time.sleep(SETTLE_S)
        found = {rank: record for rank in range(ranks) if (record := flight_record.read(job, rank)) is not None}
        groups = {rank: [group_of(one) for one in record.get("groups", ())] for rank, record in found.items()}
        few = rank_evidence.behind(groups)
        if few is not None and few.ranks == (ranks - 1,):
            lines = tuple(str(found[rank]) for rank in sorted(found))
            return Seen(
                "PASS", f"rank {ranks - 1}, which stays away, {few.words}", lines, raw(job, "flight-late", ranks)
            )
    lines, files = tuple(str(found[rank]) for rank in sorted(found)), raw(job, "flight-late", ranks)
    return Seen("FAIL", f"the records of {len(found)} of {ranks} ranks do not name rank {ranks - 1}", lines, files)


def raw(job: str, name: str, ranks: int) -> tuple[tuple[str, str | bytes], ...]:
    """Return the records of all ranks as PyTorch wrote them, as files to keep."""
    paths = {rank: flight_record.folder(job) / f"record_{rank}" for rank in range(ranks)}
    return tuple((f"{name}_{rank}", path.read_bytes()) for rank, path in paths.items() if path.is_file())


def group_of(words: Mapping[str, Any]) -> Any:
    """Return a group of a record as the judge of the watch reads it: a ``FlightGroup``, whose library is not here."""
    rest = {"meaning": "", "last_call": "", "waits": -1, "call": "", "sizes": "", "peers": ()}
    return SimpleNamespace(**{**rest, **words})


def topo(text: str) -> list[dict[str, str]]:
    """Return the rows of ``nvidia-smi topo -m`` by their columns; the row's own name is in ''."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [[cell.strip() for cell in line.split("\t")] for line in plain.splitlines() if "\t" in line]
    head = next((row for row in rows if "GPU0" in row and "X" not in row), [])
    return [dict(zip(head, row)) for row in rows if head and row is not head and row[0] and row[0] in head]  # noqa: B905


def affinity(text: str, topology: Mapping[str, Any]) -> Seen:
    """Hold the places of GPUs by /sys against those that the driver tells: cores, and the nearest network cards."""
    rows = [row for row in topo(text) if row.get("", "").startswith("GPU")]
    gpus = [one for one in topology["gpus"] if one.get("name") or one.get("bus")]
    lines = tuple(text.splitlines())
    if not rows:
        return Seen("SKIP", "nvidia-smi topo -m tells no GPU", lines)
    if len(rows) != len(gpus):
        return Seen("FAIL", f"nvidia-smi tells {len(rows)} GPUs, and /sys {len(gpus)}", lines)
    cards = dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", text, re.MULTILINE))
    numa = {one["number"]: cpus(",".join(one["cores"])) for one in topology["numa"]}
    wrong = []
    for row, gpu in zip(rows, sorted(gpus, key=lambda one: one["bus"])):  # noqa: B905 - as many, see above
        told = row.get("CPU Affinity", "")
        own = numa.get(gpu["numa"], set())
        if re.fullmatch(r"[0-9,-]+", told) and own and not cpus(told) & own:
            wrong.append(f"{row['']}: the driver tells cores {told}, /sys those of NUMA node {gpu['numa']}")
        near = nearest(gpu, topology["rdma"])
        best = min((BEST_FIRST.index(row[nic]) for nic in cards if row.get(nic) in BEST_FIRST), default=None)
        at = next((row.get(nic, "") for nic, name in cards.items() if name == near), "")
        if near and best is not None and at in BEST_FIRST and BEST_FIRST.index(at) > best:
            wrong.append(f"{row['']}: {near} counts as nearest, and is {at} where another one is {BEST_FIRST[best]}")
    if wrong:
        return Seen("FAIL", "; ".join(wrong), lines)
    return Seen(
        "PASS",
        f"{len(rows)} GPU{'s' * (len(rows) > 1)}: /sys and the driver agree on cores and nearest network cards",
        lines,
    )


def nearest(gpu: Mapping[str, Any], cards: list[dict[str, Any]]) -> str:
    """Return the network card that shares most bridges with a GPU, '' where none shares one."""
    shared = {}
    for card in cards:
        pairs = list(zip(gpu["pci_path"][:-1], card["pci_path"][:-1]))  # noqa: B905 - the shorter path ends it
        shared[card["name"]] = next((at for at, (one, two) in enumerate(pairs) if one != two), len(pairs))
    name = max(shared, key=lambda one: shared[one], default="")
    return name if shared.get(name) else ""


def cpus(text: str) -> set[int]:
    """Return a list of processors such as ``0-3,8`` as numbers."""
    found: set[int] = set()
    for word in text.split(","):
        first, _sign, last = word.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found
