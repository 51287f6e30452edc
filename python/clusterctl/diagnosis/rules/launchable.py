"""Can ranks be launched on this node: temporary folders, shared memory, disk, limits, programs, and Slurm's PMIx?

:func:`of_node` needs the facts of one node alone, so that a failed launch can be explained on the spot. The
collection's ``plugins/module_utils/fitness_rules`` holds the rules that a node's own ``check_node.py`` applies as well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.skew import PROVISION, artifact
from clusterctl.launch.mpirun_job import of_others
from clusterctl.model import nodeset
from clusterctl.model.facts import is_series_41, srun_without_pmix
from clusterctl.model.findings import Finding, Severity, majority
from clusterctl.model.job_login import can_carry_a_launch, is_csh
from clusterctl.support import content
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from module_utils import fitness_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts, SessionTrap, SlurmPlugin, SlurmSettings
else:
    _rules = content.module_util("fitness_rules")

SHM = _rules.SHM
_MIB = 1 << 20
# A rank of Open MPI 5 takes 16 MiB for its own segment of shared memory (btl_sm, segment_size's default).
_SHM_OF_A_RANK = 16 * _MIB
_LEAST_SHM = 128 * _MIB  # containers get 64 MiB unless somebody asks for more, which is not enough for NCCL
_LITTLE = 100 * _MIB
_LEAST_ADDRESSES = 512 * _MIB  # a rank of mpi4py with numpy reserves 212 MiB before it holds any data
# Limits of a process that should have none, by their names in limits.conf(5): what a finding is about, the unit, what a
# process may do, and the least below which no launch works. A launch writes files of some MiB for its ranks to share.
_OF_A_PROCESS = {
    "as": (
        "address space",
        _MIB,
        "use {} MiB of addresses (ulimit -v), and libraries of ranks reserve more",
        _LEAST_ADDRESSES,
    ),
    "data": ("data size", _MIB, "have {} MiB of data (ulimit -d), and ranks may need more", _LITTLE),
    "fsize": ("file size", 1024, "write files of {} KiB (ulimit -f), and checkpoints of jobs are larger", _LITTLE),
    "cpu": ("processor time", 1, "take {} s of processor time (ulimit -t), and the kernel then ends it", 300),
}
_FILES_OF_A_JOB = _rules.FILES_OF_A_JOB
# mpirun or its daemon, ssh and shells; a rank of Open MPI 5 has its own thread, PMIx's, and one of its TCP.
_PROCESSES_OF_A_DAEMON, _THREADS_OF_A_RANK = 16, 3
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
        *login(host, node),
        *_programs(host, node),
        *_scratch(host, node),
        *_shared_memory(host, node, slots),
        *_limits(host, node, ranks),
        *_processes(host, node, slots),
        *_disks(host, node),
        *_loopback(host, node),
    ]


def launchable(view: View) -> Iterator[Finding]:
    """Return what hinders a launch on any node."""
    ranks = sum(view.slots.values())
    for host, node in view.nodes.items():
        yield from of_node(host, node, slots=view.slots.get(host, 1), ranks=ranks)
    yield from unlike_shells(view.nodes)


def foreign_mpirun(node: NodeFacts) -> str:
    """Say which other mpirun a session finds before the installed one, '' if it finds the installed one or none.

    Only accounts that run jobs find the installed one first. Root and a login user beside such an account do not.
    """
    beside = node.job_user is not None and node.job_user.exists and node.job_user.name != node.user.name
    if beside or node.user.name == "root":
        return ""
    installed = artifact(node, "openmpi")
    found = next((program for program in node.launch if program.name == "mpirun"), None)
    if installed is None or found is None or not found.path or found.real in {found.own_real, ""}:
        return ""
    return f"mpirun of a session is {found.path}, and not the installed {found.own}"


def path_cure(node: NodeFacts) -> str:
    """Return how sessions find the installed mpirun first."""
    then = f"see in the start-up files of the shell why {node.layout.openmpi}/bin is not first in PATH"
    return f"{PROVISION} (role environment), or {then}; until then 'source {activate(node)}' helps"


def activate(node: NodeFacts) -> str:
    """Return the file that puts the cluster's programs first, for the shell of the account."""
    name = node.login.shell.rpartition("/")[2]
    return f"/etc/clusterctl/activate{'.csh' if is_csh(name) else '.fish' if name == 'fish' else ''}"


# --- the login: its shell, variables that break programs, and the home ------------------------------------------------

_TRAPS = {
    "carriage return": "holds a carriage return, so that what it names does not exist",
    "quote": "holds a quote, so that a folder in it does not exist",
    "not expanded": "names another variable, and nothing expands it there",
}
_SERIOUS = ("PATH", "LD_LIBRARY_PATH")


def login(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Name a login shell that runs no daemon, variables that break programs, and a home that sshd or a job refuses."""
    account = node.job_user if node.job_user is not None and node.job_user.exists else None
    user = account.name if account else node.user.name
    if not can_carry_a_launch(node.job_shell):
        cause = f"the login shell of user {user} is {node.job_shell}, which cannot run the command that mpirun sends"
        cure = f"give the user another one there: 'chsh -s /bin/bash {user}', or in the directory service"
        yield Finding("session", "error", (host,), cause, cure)
    if any("/dev/null" in problem for problem in node.problems):  # Python names what it could not open
        cause = f"user {user} cannot open /dev/null, so that shells, ssh and programs fail"
        cure = "'chmod 666 /dev/null', or make the device anew ('mknod -m 666 /dev/null c 1 3')"
        yield Finding("session", "error", (host,), cause, cure, (("chmod", "666", "/dev/null"),))
    broken: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for trap in node.login.traps:
        cure = _trap_cure(trap)
        if trap.what == "breaks":
            broken[f"{trap.name} ({trap.source})", trap.said, cure].append(trap.program)
            continue
        is_lost = trap.what != "not expanded" or (trap.name == "PATH" and "/usr/bin" not in trap.said.split(":"))
        severity: Severity = "error" if trap.name in _SERIOUS and is_lost else "warning"
        shown = f"{trap.name} = {trap.said}" if trap.said else trap.name
        yield Finding("session", severity, (host,), f"{shown} ({trap.source}) {_TRAPS.get(trap.what, '')}", cure)
    for (variable, said, cure), programs in broken.items():
        cause = f"{variable} breaks {and_more(programs, 3)} in each session: {said}"
        yield Finding("session", "error", (host,), cause, cure)
    home = account.home if account else node.user.home
    strict = node.ssh.settings.get("StrictModes", "").lower() != "no"
    for cause in (account.unsafe if account else node.login.unsafe) if strict else ():
        path = cause.partition(" ")[0]
        words = f"{cause}, for which sshd refuses the keys of user {user} (StrictModes)"
        cure = f"'chmod go-w {path}'" if "mode" in cause else f"'chown {user} {path}'"
        yield Finding("session", "warning", (host,), words, cure)
    if refuses := account.home_refuses if account else node.login.home_refuses:
        cure = "mount it for writing, and look for errors of the disk or of its server in the kernel's log"
        cure = cure if refuses == "read-only" else f"let user {user} write there ('ls -ld {home}')"
        cause = f"the home {home} is {refuses} for user {user}, and jobs keep files and caches there"
        yield Finding("home", "error" if refuses == "read-only" else "warning", (host,), cause, cure)


def _trap_cure(trap: SessionTrap) -> str:
    if trap.what == "breaks":
        return f"remove {trap.name} from {_place(trap)}, or set it in the job that needs it alone"
    if trap.what == "not expanded":
        return (
            f"write all folders out in {_place(trap)}{', /usr/bin and /bin among them' if trap.name == 'PATH' else ''}"
        )
    if trap.source.startswith("/etc/environment line"):
        line = trap.source.rpartition(" ")[2]
        how = f"write line {line} of /etc/environment anew without it"
        return f"{how}, or {PROVISION} (role environment)" if trap.name in _SERIOUS else how
    return f"write that line of {_place(trap)} anew without it"


def _place(trap: SessionTrap) -> str:
    return "/etc/environment or a start-up file of the shell" if trap.source == "environment" else trap.source


def unlike_shells(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name the nodes whose login shell speaks another language than on most: plain mpirun speaks one to all."""
    families = {host: "csh" if is_csh(node.job_shell) else "sh" for host, node in nodes.items() if node.job_shell}
    spread = majority(families)
    for family, hosts in spread.others.items():
        cause = (
            f"the login shell of jobs speaks the language of {family} ({nodes[hosts[0]].job_shell}), and of "
            f"{spread.usual or 'another shell'} on most nodes; a plain mpirun takes its own node's for that of all"
        )
        cure = "give jobs one shell on all nodes (chsh), or set plm_ssh_assume_same_shell=0, as 'clusterctl run' does"
        yield Finding("session", "warning", hosts, cause, cure)


# --- programs, folders, limits and disks ------------------------------------------------------------------------------


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


def _loopback(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Name a loopback interface that is down: ranks find their daemon there, and wait for it without an end."""
    for one in node.interfaces:
        if one.kind == "loopback" and not one.up:
            cause = f"its loopback interface {one.name} is down, so that ranks cannot reach the daemon of mpirun"
            cure = f"'ip link set {one.name} up', and look for what took it down"
            yield Finding("network", "error", (host,), cause, cure, (("ip", "link", "set", one.name, "up"),))


def _limits(host: str, node: NodeFacts, ranks: int) -> Iterator[Finding]:
    memlock, files = node.limits.get("memlock"), node.limits.get("nofile")
    if memlock is not None:
        cause, cure = _rules.memlock(memlock.soft, [device.model_dump() for device in node.rdma])
        if cause:
            yield Finding("memlock", "error", (host,), cause, cure)
    for name, (check, unit, words, least) in _OF_A_PROCESS.items():
        found = node.limits.get(name)
        if found is not None and found.soft is not None:
            grave: Severity = "error" if found.soft < least else "warning"
            cause = f"a process may {words.format(found.soft // unit)}"
            yield Finding(check, grave, (host,), cause, f"let {name} be unlimited in /etc/security/limits.d")
    if files is None or files.soft is None:
        return
    needed = _FILES_OF_A_JOB + ranks
    if files.soft < needed:
        severity: Severity = "error" if files.soft < _FILES_OF_A_JOB else "warning"
        job = f"a job of {ranks} ranks" if ranks else "a job"
        cause = f"a session may open {files.soft} files, and {job} needs about {needed}"
        yield Finding("open files", severity, (host,), cause, _FILE_LIMIT)


def _processes(host: str, node: NodeFacts, slots: int) -> Iterator[Finding]:
    """Compare the processes that a session may still start with those of a launch."""
    needed = _PROCESSES_OF_A_DAEMON + _THREADS_OF_A_RANK * slots
    room = node.process_room
    if room is not None and room.left < needed:
        cause = f"a session may start {room.left} more processes and threads ({room.by}), and its ranks need {needed}"
        cure = "raise nproc in /etc/security/limits.d" if room.by == "nproc" else "raise it (TasksMax, --pids-limit)"
        yield Finding("processes", "error", (host,), cause, f"{cure}, or end what runs there")


def _disks(host: str, node: NodeFacts) -> Iterator[Finding]:
    for disk in node.disk:
        plain = disk.model_dump()
        cause, cure = _rules.disk(plain)
        if cause:
            yield Finding("disk", "error" if _rules.is_full(plain) else "warning", (host,), cause, cure)


# --- does Slurm's PMIx fit to Open MPI's, so that 'srun --mpi=pmix' starts ranks that know of each other --------------

# Without PMIx, srun starts every rank of Open MPI 5.0 as a world of size 1, and the job ends with code 0. A rank of 4.1
# ends with an error.
SLURM_PMIX = "slurm pmix"
_RESTART = "restart slurmd"
_PLUGIN_MAJOR = re.compile(r"pmix_v(\d+)")
_SUPPORTED = ("4.1.", "5.")  # series of Open MPI that mpirun.dialect knows
_OLDEST_SERVER = 4  # the lean build of Open MPI 5.0 leaves out the wire formats of PMIx 3 and before
_OWN_OF_41 = "3.2"  # the PMIx inside Open MPI 4.1, which has no library of its own


def slurm_pmix(view: View) -> Iterator[Finding]:
    """Return what keeps 'srun --mpi=pmix' from starting ranks, for each node."""
    for host, node in view.nodes.items():
        if node.slurm is not None:
            yield from pmix_hindrances(host, node)
            yield from _default(host, node, node.slurm)


def slurm_pmix_notes(view: View) -> Iterator[str]:
    """Return what a user of srun has to know: its default type, missing plugins, and PMIx of two releases."""
    yield from _together({host: _without_pmix(node) for host, node in view.nodes.items()})
    yield from _together({host: _two_releases(node) for host, node in view.nodes.items()})


def openmpi_notes(view: View) -> Iterator[str]:
    """Return which Open MPI and packages of others the nodes run jobs with, and which Open MPI they could."""
    said: dict[str, list[str]] = defaultdict(list)
    for host, node in view.nodes.items():
        for one in () if node.artifact("openmpi").inputs.get("existing") else node.vendor_openmpis:
            if one.version.startswith(_SUPPORTED):
                words = f"Open MPI {one.version} is in {one.path}; 'openmpi_existing: {one.path}' in the inventory"
                said[f"{words} has jobs use it."].append(host)
    yield from (f"{hosts}: jobs run with {openmpi}." for hosts, openmpi in of_others(view.nodes))
    yield from training_stack.taken(view.nodes)
    yield from (f"On {nodeset.folded(hosts)}, {words}" for words, hosts in said.items())


def pmix_hindrances(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Return why 'srun --mpi=pmix' cannot start ranks on a node that has Slurm."""
    slurm = node.slurm
    if slurm is None:
        return
    severity: Severity = "error" if slurm.mpi_default.startswith("pmix") else "warning"
    for plugin in slurm.plugins:
        major = _major(plugin)
        if not plugin.found:
            cause = (
                f"Slurm's plugin {plugin.name} opens {plugin.opens}, which is missing: 'srun --mpi=pmix' starts no rank"
            )
            yield Finding(SLURM_PMIX, severity, (host,), cause, f"{_link(node, plugin)}, then {_RESTART}")
        elif major and plugin.version and plugin.version.partition(".")[0] != major:
            cause = f"Slurm's plugin {plugin.name} needs PMIx {major}, and {plugin.opens} is PMIx {plugin.version}"
            cure = f"install the PMIx {major} that Slurm was built with, then {_RESTART}"
            yield Finding(SLURM_PMIX, severity, (host,), cause, cure)
    served = [int(_major(plugin)) for plugin in slurm.plugins if plugin.found and _major(plugin)]
    installed = artifact(node, "openmpi")
    if served and max(served) < _OLDEST_SERVER and installed is not None and installed.version.startswith("5."):
        cause = f"Slurm speaks PMIx {max(served)}, and Open MPI {installed.version} was built for PMIx 4 and newer"
        cure = "build Slurm with PMIx 4 or newer, or start jobs by mpirun"
        yield Finding(SLURM_PMIX, severity, (host,), cause, cure)


def _default(host: str, node: NodeFacts, slurm: SlurmSettings) -> Iterator[Finding]:
    """Name a default type of srun that this node cannot serve, or one without PMIx although jobs use srun."""
    names = {plugin.name for plugin in slurm.plugins} | ({"pmix"} if slurm.plugins else set())
    where = f"{slurm.mpi_default_by} is {slurm.mpi_default}"
    if slurm.mpi_default.startswith("pmix") and slurm.mpi_default not in names:
        has = f"Slurm has {', '.join(sorted(names))}" if names else "Slurm has no PMIx plugin"
        cause = f"{where}, and {has}: srun starts no rank"
        yield Finding(SLURM_PMIX, "error", (host,), cause, f"install that plugin, or change {slurm.mpi_default_by}")
    elif not slurm.mpi_default.startswith("pmix") and node.pmix.is_external:
        cause = f"{where}, so plain srun {srun_without_pmix(_openmpi(node))}; this Open MPI was built for srun"
        cure = f"{_set_default(slurm)}, or start jobs by 'srun --mpi=pmix'"
        yield Finding(SLURM_PMIX, "warning", (host,), cause, cure)


def _link(node: NodeFacts, plugin: SlurmPlugin) -> str:
    """Return what brings the library back that a plugin opens."""
    folder, _, name = plugin.opens.rpartition("/")
    site = node.pmix.site
    if folder and site is not None and site.library.startswith(f"{folder}/"):
        return f"make the link: 'ln -s {site.library.rpartition('/')[2]} {folder}/{name}'"
    return "install the PMIx library that Slurm was built with (libpmix2 or pmix)"


def _without_pmix(node: NodeFacts) -> str:
    """Say that plain srun starts ranks without PMIx, '' if it does not or if that is a finding."""
    slurm = node.slurm
    if slurm is None or slurm.mpi_default.startswith("pmix") or node.pmix.is_external:
        return ""
    then = srun_without_pmix(_openmpi(node))
    if not slurm.plugins:
        return f"Slurm has no PMIx plugin; start jobs by mpirun, since srun {then}"
    return (
        f"{slurm.mpi_default_by} is {slurm.mpi_default}, so plain srun {then}; start jobs by mpirun or by "
        f"'srun --mpi=pmix', or {_set_default(slurm)}"
    )


def _openmpi(node: NodeFacts) -> str:
    """Return the version of the installed Open MPI, '' without one."""
    installed = artifact(node, "openmpi")
    return installed.version if installed is not None else ""


def _set_default(slurm: SlurmSettings) -> str:
    place = slurm.conf or "slurm.conf"
    return "unset SLURM_MPI_TYPE" if slurm.mpi_default_by != "MpiDefault" else f"set MpiDefault=pmix in {place}"


def _two_releases(node: NodeFacts) -> str:
    """Say that Slurm's PMIx and Open MPI's are of two major releases, '' if they are not."""
    if node.slurm is None or node.pmix.built_with != "internal":
        return ""
    own = node.pmix.own or (_OWN_OF_41 if is_series_41(_openmpi(node)) else "")
    served = next((plugin.version for plugin in node.slurm.plugins if plugin.version), "")
    if not own or not served or own.partition(".")[0] == served.partition(".")[0]:
        return ""
    return (
        f"Slurm has PMIx {served} and Open MPI brings PMIx {own}; 'srun --mpi=pmix' may say that psec munge is "
        "missing, and openmpi_pmix: external builds Open MPI with Slurm's where the release suits"
    )


def _together(said: Mapping[str, str]) -> Iterator[str]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, words in said.items():
        if words:
            hosts[words].append(host)
    for words, names in hosts.items():
        yield f"{nodeset.folded(names)}: {words}"


def _major(plugin: SlurmPlugin) -> str:
    match = _PLUGIN_MAJOR.match(plugin.name)
    return match.group(1) if match else ""
