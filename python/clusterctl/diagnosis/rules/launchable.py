"""Can ranks be launched on this node: temporary folders, shared memory, disk, limits and the launcher's programs?

:func:`of_node` needs the facts of one node alone, so that a failed launch can be explained on the spot. The
collection's ``plugins/module_utils/fitness_rules`` holds the rules that a node's own ``check_node.py`` applies as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import PROVISION, artifact
from clusterctl.model.findings import Finding, Severity
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from module_utils import fitness_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts
else:
    _rules = content.module_util("fitness_rules")

ORDER = 45
SHM = _rules.SHM
_MIB = 1 << 20
# A rank of Open MPI 5 takes 16 MiB for its own segment of shared memory (btl_sm, segment_size's default).
_SHM_OF_A_RANK = 16 * _MIB
_LEAST_SHM = 128 * _MIB  # containers get 64 MiB unless somebody asks for more, which is not enough for NCCL
_LITTLE = 100 * _MIB
_FILES_OF_A_JOB = _rules.FILES_OF_A_JOB
_FILE_LIMIT = "raise nofile in /etc/security/limits.d"


def of_node(host: str, node: NodeFacts, *, slots: int = 1, ranks: int = 0) -> list[Finding]:
    """Return what hinders a launch on one node.

    Args:
        host: its name in the inventory.
        node: its facts.
        slots: the ranks on this node.
        ranks: the ranks of the whole job, 0 if that is unknown.
    """
    return [
        *_programs(host, node),
        *_scratch(host, node),
        *_shared_memory(host, node, slots),
        *_limits(host, node, ranks),
        *_disks(host, node),
    ]


def findings(view: View) -> Iterator[Finding]:
    """Return what hinders a launch on any node."""
    ranks = sum(view.slots.values())
    for host, node in view.nodes.items():
        yield from of_node(host, node, slots=view.slots.get(host, 1), ranks=ranks)


def foreign_mpirun(node: NodeFacts) -> str:
    """Say which other mpirun a session finds before the installed one, '' if it finds the installed one or none."""
    installed = artifact(node, "openmpi")
    found = next((program for program in node.launch if program.name == "mpirun"), None)
    if installed is None or found is None or not found.path or found.real in {found.own_real, ""}:
        return ""
    return f"mpirun of a session is {found.path}, and not the installed {found.own}"


def path_cure(node: NodeFacts) -> str:
    """Return how sessions find the installed mpirun first."""
    folder = f"{node.layout.openmpi}/bin"
    return f"put {folder} first in PATH: look in /etc/environment and in start-up files of the shell"


def _programs(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Name programs of the installed Open MPI that cannot run; Open MPI 4 has orted, and 5 has PRRTE's prted."""
    installed = artifact(node, "openmpi")
    if installed is None:
        return
    needed = {"mpirun", "orted"} if installed.version.startswith("4.") else {"mpirun", "prterun", "prted"}
    for program in node.launch:
        if program.name in needed and program.own_state != "ok":
            cause = f"{program.own} is {program.own_state}, so that mpirun cannot start ranks on this node"
            missing = program.own_state == "missing"
            cure = PROVISION if missing else f"'chmod 755 {program.own}', or {PROVISION}"
            fix = () if missing else (("chmod", "755", program.own),)
            yield Finding("launch", "error", (host,), cause, cure, fix)


def _scratch(host: str, node: NodeFacts) -> Iterator[Finding]:
    for folder in node.scratch:
        check = "shared memory" if folder.path == SHM else "temporary files"
        plain = folder.model_dump()
        for cause, cure in _rules.scratch(plain):
            yield Finding(check, "error", (host,), cause, cure)
        if not _rules.unusable(plain)[0] and folder.path != SHM and folder.free_bytes < _LITTLE:
            cause = f"{folder.path} has {folder.free_bytes // _MIB} MiB free"
            yield Finding(check, "warning", (host,), cause, f"free space in {folder.path}")


def _shared_memory(host: str, node: NodeFacts, slots: int) -> Iterator[Finding]:
    """Compare what is free in /dev/shm with what the ranks of this node need."""
    needed = max(_LEAST_SHM, _SHM_OF_A_RANK * slots)
    folder = next((one for one in node.scratch if one.path == SHM), None)
    is_unseen = any(problem.startswith("storage:") for problem in node.problems)
    if is_unseen or (folder is not None and _rules.unusable(folder.model_dump())[0]):
        return
    if node.shm_bytes < needed:
        size = f"has {node.shm_bytes // _MIB} MiB" if node.shm_bytes else "is not there"
        cause = f"{SHM} {size}, and its ranks need about {needed // _MIB} MiB"
        yield Finding("shared memory", "warning", (host,), cause, "mount it larger, in containers with --shm-size=1g")
        return
    if folder is not None and folder.free_bytes < needed:
        cause = f"{SHM} has {folder.free_bytes // _MIB} of {folder.total_bytes // _MIB} MiB free"
        cure = f"remove the files that earlier jobs left in {SHM}"
        yield Finding(
            "shared memory", "warning", (host,), f"{cause}, and its ranks need about {needed // _MIB} MiB", cure
        )


def _limits(host: str, node: NodeFacts, ranks: int) -> Iterator[Finding]:
    memlock, files = node.limits.get("memlock"), node.limits.get("nofile")
    if memlock is not None:
        cause, cure = _rules.memlock(memlock.soft, [device.model_dump() for device in node.rdma])
        if cause:
            yield Finding("memlock", "error", (host,), cause, cure)
    if files is None or files.soft is None:
        return
    needed = _FILES_OF_A_JOB + ranks
    if files.soft < needed:
        severity: Severity = "error" if files.soft < _FILES_OF_A_JOB else "warning"
        job = f"a job of {ranks} ranks" if ranks else "a job"
        cause = f"a session may open {files.soft} files, and {job} needs about {needed}"
        yield Finding("open files", severity, (host,), cause, _FILE_LIMIT)


def _disks(host: str, node: NodeFacts) -> Iterator[Finding]:
    for disk in node.disk:
        plain = disk.model_dump()
        cause, cure = _rules.disk(plain)
        if cause:
            yield Finding("disk", "error" if _rules.is_full(plain) else "warning", (host,), cause, cure)
