"""Prove the way between nodes before a job's own program starts: ``clusterctl launch --prove`` puts this before it.

torchrun starts it as each worker: ``launch_proof.py FOLDER SECONDS [PROGRAM ARGUMENT...]``. A child joins all ranks in
one group of PyTorch, over NCCL where every rank has a GPU and over Gloo otherwise, and compares sums with known ones.
The worker itself reports for the child, also where that hangs or dies. PyTorch's store carries the reports to rank 0.
It lays them into FOLDER, where node 0's ``clusterctl launch`` judges them. Then the worker becomes PROGRAM, or ends.

All that the proof needs of the store has a prefix of its own, so the program finds it as torchrun left it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import nccl_log
import port_counters

COUNTS = (1, 1001, 1 << 20)
ROUNDS = 4  # of the largest sum, so that the counters of a node show it beside other traffic
GRACE_S = 20.0  # for reports on their way, behind the deadline
VERDICT_S = 60.0
POLL_S = 0.1
PREFIX = "clusterctl_proof"
PR_SET_PDEATHSIG = 1
NODE, REPORTS, VERDICT = "node.json", "reports.json", "verdict.json"
STOPPED, NO_VERDICT = 0, 11  # with 0 torchrun prints nothing of its own; 'clusterctl launch' knows the verdict
CHOOSE_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Place:
    """Which worker this is, by torchrun's variables."""

    def __init__(self) -> None:
        """Read them."""
        given = os.environ
        self.rank, self.size = int(given["RANK"]), int(given["WORLD_SIZE"])
        self.local = int(given["LOCAL_RANK"])

    def store(self, torch: Any, seconds: float) -> Any:
        """Return the store of torchrun's agent on node 0."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        limit = timedelta(seconds=seconds)
        store = torch.distributed.TCPStore(address, port, self.size, self.rank == 0 and not served, limit)
        return torch.distributed.PrefixStore(PREFIX, store)


# --- the child: collectives -------------------------------------------------------------------------------------------


def prove(torch: Any, place: Place, seconds: float, pipe: int, log: nccl_log.Log) -> NoReturn:
    """Join all ranks, compare sums, and write steps and the findings into the pipe."""

    def say(**words: Any) -> None:
        os.write(pipe, (json.dumps(words) + "\n").encode())

    try:
        say(step="the look for a GPU")
        found: dict[str, Any] = {"gpu": "", "no_gpu": ""}
        try:
            if torch.cuda.is_available():
                found["gpu"] = str(torch.cuda.get_device_name(place.local % torch.cuda.device_count()))
            else:
                found["no_gpu"] = "torch.cuda.is_available() says so"
        except Exception as problem:  # noqa: BLE001 - a driver that refuses is a finding
            found["no_gpu"] = f"{type(problem).__name__}: {problem}"
        say(step="the exchange of who has a GPU")
        store = place.store(torch, seconds)
        store.set(f"gpu/{place.rank}", "1" if found["gpu"] else "0")
        everybody = [store.get(f"gpu/{rank}") for rank in range(place.size)]
        backend = found["backend"] = "nccl" if all(one == b"1" for one in everybody) else "gloo"
        say(step=f"the start of {backend}")
        device = torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(place.local % torch.cuda.device_count())
            device = torch.device("cuda")
        own = torch.distributed.PrefixStore("group", store)
        limit = timedelta(seconds=seconds)
        torch.distributed.init_process_group(backend, store=own, rank=place.rank, world_size=place.size, timeout=limit)
        before = port_counters.counters(port_counters.SYS) if place.local == 0 else {}
        found["wrong"] = sums(torch, place, device, backend, say)
        torch.distributed.barrier()
        if before:
            settings = {name: os.environ[name][:40] for name in CHOOSE_INTERFACE if name in os.environ}
            found["carried"] = {"ports": port_counters.told(before), "settings": settings}
        found["path"] = nccl_log.told(log.lines())
        say(result=found)
    except Exception as problem:  # noqa: BLE001 - the report must have it
        say(problem=f"{type(problem).__name__}: {problem}"[:2000])
    os._exit(0)


def sums(torch: Any, place: Place, device: Any, backend: str, say: Any) -> str:
    """Return the first sum that is wrong, '' where all are right."""
    total = place.size * (place.size + 1) // 2
    for count in COUNTS:
        say(step=f"all_reduce of {count} numbers over {backend}")
        values = torch.arange(count, device=device) % 7 + 1
        for _round in range(ROUNDS if count == COUNTS[-1] else 1):
            given = (values * (place.rank + 1)).to(torch.float32)
            torch.distributed.all_reduce(given)
            if not torch.equal(given.cpu(), (values * total).to(torch.float32).cpu()):
                return f"all_reduce of {count} numbers over {backend}"
    return ""


# --- the worker: reports and the verdict ------------------------------------------------------------------------------


def watched(child: int, pipe: int, seconds: float) -> dict[str, Any]:
    """Return what became of the child: its findings, or its last step and how it ended."""
    end = time.monotonic() + seconds
    told: dict[str, Any] = {"state": "died", "step": "its start", "text": ""}
    rest = b""
    while time.monotonic() < end:
        if not select.select([pipe], [], [], POLL_S)[0]:
            continue
        data = os.read(pipe, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            told["step"] = said.get("step", told["step"])
            if "result" in said:
                told.update(said["result"], state="answered")
            elif "problem" in said:
                told.update(state="raised", text=said["problem"])
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return {**told, "state": "stuck", "text": f"within {seconds:g} s"}
    status = os.waitpid(child, 0)[1]
    if told["state"] == "died":
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        told["text"] = f"it ended with {how}"
    return told


def collected(store: Any, size: int, seconds: float) -> list[dict[str, Any]]:
    """Return the report of every rank; one that is missing has the host from which its worker greeted."""
    end = time.monotonic() + seconds
    found = []
    for rank in range(size):
        report: dict[str, Any] = {"rank": rank, "state": "no word"}
        for key in (f"report/{rank}", f"hello/{rank}"):
            with contextlib.suppress(Exception):  # DistStoreError, whose name came with PyTorch 2.4
                store.wait([key], timedelta(seconds=max(0.1, end - time.monotonic())))
                report.update(json.loads(store.get(key)))
                break
        found.append(report)
    return found


def written(path: Path, value: Any) -> None:
    """Write a file that is whole as soon as it is there."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value), encoding="utf-8")
    beside.replace(path)


def verdict_of(folder: Path) -> dict[str, Any]:
    """Wait for the verdict of node 0's ``clusterctl launch``."""
    end = time.monotonic() + VERDICT_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((folder / VERDICT).read_text(encoding="utf-8")))
        time.sleep(POLL_S)
    return {"code": NO_VERDICT, "lines": ["proof ERROR: 'clusterctl launch' of node 0 gave no verdict"]}


def agreed(torch: Any, place: Place, folder: Path, seconds: float) -> int:
    """Prove, report, and return the verdict's code, 0 where the program may start."""
    reader, writer = os.pipe()
    surroundings = dict(os.environ)
    log = nccl_log.Log(os.environ)
    child = os.fork()
    if not child:
        os.close(reader)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prove(torch, place, seconds, writer, log)
    os.close(writer)
    os.environ.clear()
    os.environ.update(surroundings)
    whole, began = seconds + GRACE_S, time.monotonic()
    host = socket.gethostname()
    store = place.store(torch, whole)
    store.set(f"hello/{place.rank}", json.dumps({"host": host}))
    report = {**watched(child, reader, seconds), "rank": place.rank, "host": host}
    if place.local == 0:
        report["node"] = json.loads((folder / NODE).read_text(encoding="utf-8"))
    store.set(f"report/{place.rank}", json.dumps(report))
    if place.rank == 0:
        written(folder / REPORTS, collected(store, place.size, began + whole - time.monotonic()))
        verdict = verdict_of(folder)
        store.set("verdict", json.dumps(verdict))
    else:
        store.wait(["verdict"], timedelta(seconds=2 * whole + VERDICT_S))
        verdict = json.loads(store.get("verdict"))
        if place.local == 0:
            written(folder / VERDICT, verdict)
    return int(verdict["code"])


def main() -> NoReturn:
    """Prove, then become the program or end."""
    folder, seconds, program = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    try:
        import torch  # noqa: PLC0415 - torchrun's own Python has it
        import torch.distributed  # noqa: PLC0415

        code = agreed(torch, Place(), folder, seconds)
    except Exception as problem:  # noqa: BLE001 - without a verdict the program must not start
        sys.stderr.write(f"clusterctl: proof ERROR: {type(problem).__name__}: {problem}\n")
        sys.stderr.flush()
        os._exit(NO_VERDICT)
    sys.stdout.flush()
    sys.stderr.flush()
    if code or not program:
        os._exit(STOPPED)
    os.closerange(3, 1 << 16)  # the store's connections
    os.execvp(program[0], program)  # noqa: S606 - an argv list, and no shell


if __name__ == "__main__":
    main()
