"""``clusterctl launch --prove``: torchrun starts each worker with a proof of the way between nodes, judged on node 0.

Every node starts torchrun once, so the proof is about the processes, the variables and the meeting place of the job.
``launch_proof.py`` of the role ``validation`` does the work and writes files into a folder that this module reads.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.analysis import launch_proof
from clusterctl.analysis.carriers import FabricPath
from clusterctl.jobs import in_allocation
from clusterctl.launch import allocation_line, mig_worker
from clusterctl.support import content, node_json
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROOF_S = 120.0  # for the start of PyTorch and NCCL, and for the sums
_POLL_S = 0.2
_END_S = 30.0
_PROGRAM, _NODE, _REPORTS, _VERDICT = "launch_proof.py", "node.json", "reports.json", "verdict.json"
_PR_SET_PDEATHSIG = 1
_NO_PROGRAM = "nothing was started, for no program was named"


def run(
    program: Sequence[str],
    options: in_allocation.LaunchOptions,
    tell: Callable[[str], None],
    told: Callable[[allocation_line.AllocationPlan], None],
) -> int:
    """Prove, then let the program run; return its exit code, or that of a proof that is no PASS.

    Raises:
        ConfigError: as :func:`in_allocation.prepare`.
        HostFailedError: likewise.
    """
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-proof-"))
    try:
        plan = in_allocation.prepare(program, options, tell, before=partial(_before, folder))
        told(plan)
        if plan.where.nodes == 1:
            tell("proof: one node alone has no way to others to prove" + ("" if program else f"; {_NO_PROGRAM}"))
            if not program:
                return ExitCode.OK
            plan = in_allocation.prepare(program, options, tell)
            shutil.rmtree(folder, ignore_errors=True)
            in_allocation.become(plan)
        (folder / _NODE).write_text(json.dumps(word_of(plan.machine).record), encoding="utf-8")
        return _ended(folder, _started(plan, folder, tell), tell, with_program=bool(program))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def word_of(machine: allocation_line.LocalMachine) -> launch_proof.NodeWord:
    """Return what the verdict has to know of this machine."""
    record = machine.node.fabric
    recorded = record.interface if record is not None else ""
    name = recorded or allocation_line.interface_to(machine.node, machine.master_addresses)[0]
    return launch_proof.NodeWord(
        rdma=tuple(f"{port.device}:{port.number}" for port in allocation_line.serving(machine.rdma)),
        gpu_devices=machine.gpu_devices,
        settings=machine.node.path_settings,
        fabric=FabricPath((name,)) if name else None,
        is_recorded=bool(recorded),
    )


def _before(folder: Path, program: Sequence[str], python: str) -> tuple[str, ...]:
    """Return the worker that proves first; it lies beside the two programs that it imports."""
    words = mig_worker.command(program, python) if program else ()
    return (python, str(content.role_files("validation") / _PROGRAM), str(folder), f"{PROOF_S:g}", *words)


def _started(plan: allocation_line.AllocationPlan, folder: Path, tell: Callable[[str], None]) -> int:
    """Start torchrun, judge the reports if this is node 0, and return torchrun's exit code."""
    try:
        child = subprocess.Popen(
            list(plan.argv),
            env=in_allocation.environment_of(plan, os.environ),
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        raise in_allocation.not_started(plan, error) from None
    refused_at: float | None = None
    try:
        while child.poll() is None:
            if not (folder / _VERDICT).exists() and (folder / _REPORTS).exists():
                _judge(folder, tell)
            if refused_at is None and _refused(folder):
                refused_at = time.monotonic()
            if refused_at is not None and time.monotonic() - refused_at > _END_S:
                _end(child)  # it waits at its exit for a node that proves nothing
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        _end(child)
        if not _refused(folder):
            raise  # behind a verdict, it is a scheduler that ends the rest of the job: the verdict is the answer
    code = child.returncode
    return code if code >= 0 else 128 - code


def _refused(folder: Path) -> bool:
    """Return whether there is a verdict by which the program does not start."""
    try:
        return bool(node_json.loads((folder / _VERDICT).read_bytes())["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _judge(folder: Path, tell: Callable[[str], None]) -> None:
    """Judge what rank 0 has collected, say it, and lay the verdict where rank 0 waits for it."""
    try:
        reports = node_json.loads((folder / _REPORTS).read_bytes())
        verdict = launch_proof.judge([one for one in reports if isinstance(one, dict)])
    except ValueError as problem:
        verdict = launch_proof.ProofVerdict(ExitCode.VALIDATION_ERROR, (f"proof ERROR: unreadable reports, {problem}",))
    for line in verdict.lines:
        tell(line)
    beside = folder / f"{_VERDICT}.new"
    beside.write_text(json.dumps({"code": int(verdict.code), "lines": list(verdict.lines)}), encoding="utf-8")
    beside.replace(folder / _VERDICT)


def _ended(folder: Path, code: int, tell: Callable[[str], None], *, with_program: bool) -> int:
    """Return what the command ends with, once torchrun has ended."""
    try:
        verdict = node_json.loads((folder / _VERDICT).read_bytes())
        found, lines = int(verdict["code"]), [str(line) for line in verdict["lines"]]
    except (OSError, ValueError, KeyError, TypeError):
        tell(f"proof ERROR: torchrun ended with code {code} before there was a verdict")
        return ExitCode.VALIDATION_ERROR
    if found:
        if not (folder / _REPORTS).exists():  # another node's
            tell(lines[0] if lines else "proof: node 0 has the verdict")
        return found
    if not with_program:
        tell(_NO_PROGRAM)
    return code


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
