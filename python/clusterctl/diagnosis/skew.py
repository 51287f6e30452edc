"""What differs between the nodes of a cluster, and the findings in which that and everything else is told.

Pure: facts in, findings out. :func:`skew` is also the gate before jobs: a job on nodes that differ may hang, or give
right answers with the wrong library.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from clusterctl.diagnosis import training_stack
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, Severity, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.facts import Artifact, Library, NodeFacts


PROVISION = "run 'clusterctl provision' again"

# What every provisioned node has, and what some have; by artifact name, as people call it.
_NEEDED = {"openmpi": "Open MPI", "python_env": "the cluster's Python", "mpi4py": "mpi4py"}
_TITLES = {**_NEEDED, "horovod": "Horovod"}  # the rules of the stack compare NCCL
_NCCL = "libnccl.so.2"
_MPI = "libmpi.so.40"


def skew(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return what differs between nodes: errors should stop a job, warnings should not.

    Where nodes differ, those that are not like most are named, and all of them where there is no majority.

    Args:
        nodes: facts by inventory name, gathered with ``stack.ARTIFACTS`` and ``stack.LIBRARIES``. An artifact that is
            damaged is not looked at: the check of artifacts names it.
        nccl_align: by inventory name, the variable of that name; see :func:`stack_findings`.
    """
    told = (finding for finding in stacked(nodes, nccl_align) if len(nodes) > len(finding.hosts))
    return ordered((*differences(nodes), *told))


def stacked(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return what :func:`stack_findings` has to say, one finding for all nodes that share it."""
    return folded(stack_findings(nodes, nccl_align))


def differences(nodes: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Return what differs between nodes, beyond the findings of :func:`stacked`."""
    return ordered(finding for rule in _RULES for finding in rule(nodes))


def folded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those that say the same of different hosts."""
    hosts: dict[Finding, dict[str, None]] = {}
    for found in findings:
        hosts.setdefault(replace(found, hosts=()), {}).update(dict.fromkeys(found.hosts))
    return tuple(replace(found, hosts=tuple(names)) for found, names in hosts.items())


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings folded, errors first, otherwise as they came."""
    return tuple(sorted(folded(findings), key=lambda finding: finding.severity != "error"))


def compare(
    check: str,
    severity: Severity,
    what: str,
    values: Mapping[str, str],
    cure: str = PROVISION,
    fix: Callable[[str], tuple[tuple[str, ...], ...]] = lambda _usual: (),
) -> Iterator[Finding]:
    """Return one finding for each unusual value, or one finding with all values where no value is usual.

    An empty value takes no part. ``fix`` returns the commands that give a host the usual value.
    """
    known = {host: value for host, value in values.items() if value}
    found = majority(known)
    if found.others and found.usual is None:
        shown = ", ".join(f"{value} on {nodeset.folded(names)}" for value, names in found.others.items())
        yield Finding(check, severity, tuple(known), f"{what} differs, with no majority: {shown}", cure)
        return
    for value, names in found.others.items():
        told = f"{what} is {value}, and {found.usual} on most nodes"
        yield Finding(check, severity, names, told, cure, fix(str(found.usual)))


def artifact(node: NodeFacts, name: str) -> Artifact | None:
    """Return an artifact that is there, whole or not."""
    link = node.layout.link(name)
    return next((found for found in node.artifacts if found.link == link and found.target), None)


def provisioned(node: NodeFacts) -> bool:
    """Whether anything of the cluster was ever installed on the node."""
    return any(artifact(node, name) for name in _NEEDED)


# --- the rules --------------------------------------------------------------------------------------------------------


def _missing(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name who lacks what other nodes have; a node that was never provisioned lacks everything in one line."""
    having = {name for name in _NEEDED for node in nodes.values() if artifact(node, name)}
    for host, node in nodes.items():
        lacking = [_NEEDED[name] for name in _NEEDED if name in having and not artifact(node, name)]
        if lacking:
            verb = "is" if len(lacking) == 1 else "are"
            yield Finding(
                "versions",
                "error",
                (host,),
                f"{_listed(lacking)} {verb} missing, and other nodes have {'it' if len(lacking) == 1 else 'them'}",
                PROVISION,
            )


def _artifacts(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare versions everywhere, and builds among nodes that are meant to have the same one."""
    for name, title in _TITLES.items():
        severity: Severity = "warning" if name == "python_env" else "error"  # packages differ, their releases seldom
        # The system's Python is that of the platform, so no provision makes those of two platforms equal.
        groups = _by(nodes, _without_cuda) if name == "python_env" else [nodes]
        found: list[Finding] = []
        for group in groups:
            versions = {host: _version(node, name) for host, node in group.items()}
            found += compare("versions", severity, title, versions)
        yield from found
        told = {host for finding in found for host in finding.hosts}
        for alike in _by({host: node for host, node in nodes.items() if host not in told}, _kind):
            builds = {host: _build(node, name) for host, node in alike.items()}
            yield from compare("versions", severity, f"the build of {title}", builds)


def _without_cuda(node: NodeFacts) -> str:
    """Return the platform without its CUDA."""
    return node.platform.partition("-cuda")[0]


def _version(node: NodeFacts, name: str) -> str:
    found = artifact(node, name)
    return found.version if found and found.ok else ""


def _build(node: NodeFacts, name: str) -> str:
    found = artifact(node, name)
    return f"{found.version}-{found.key}" if found and found.ok else ""


def _kind(node: NodeFacts) -> tuple[str, bool]:
    """Nodes of one kind are meant to have the same builds."""
    return node.platform, training_stack.of(node).gpus > 0


def _framework(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name who has no framework where nodes of its kind have one; the rules of the stack compare different ones."""
    for alike in _by(nodes, _kind):
        stacks = {host: training_stack.of(node) for host, node in alike.items() if _version(node, "python_env")}
        named = sorted({found.framework for found in stacks.values() if found.framework})
        without = tuple(host for host, found in stacks.items() if not found.framework)
        if named and without:
            cause = f"no training framework is installed, and other nodes of the platform have {_listed(named)}"
            yield Finding("versions", "warning", without, cause, PROVISION)


def _libraries(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare the files that sessions load where nothing of ours is installed; what is, stack compares."""
    nccl = {host: _loaded_nccl(node) for host, node in nodes.items()}
    cure = "install the same NCCL on all nodes, or take the odd one out of LD_LIBRARY_PATH and /etc/ld.so.conf.d"
    for found in compare("versions", "error", f"{_NCCL} as a session loads it", nccl, cure):
        hosts = tuple(host for host in found.hosts if not artifact(nodes[host], "nccl"))
        if hosts:
            yield Finding(found.check, found.severity, hosts, found.cause, found.cure)
    own = {host: node for host, node in nodes.items() if not artifact(node, "openmpi")}
    mpi = {host: _loaded_file(node, _MPI) for host, node in own.items()}
    yield from compare("versions", "warning", f"{_MPI} as a session loads it", mpi, "install the same MPI on all nodes")


def _library(node: NodeFacts, soname: str) -> Library | None:
    return next((found for found in node.libraries if found.soname == soname and found.path), None)


def _loaded_nccl(node: NodeFacts) -> str:
    found = _library(node, _NCCL)
    return (found.version or f"unknown ({found.path})") if found else ""


def _loaded_file(node: NodeFacts, soname: str) -> str:
    found = _library(node, soname)
    return PurePosixPath(found.real).name if found else ""


def _system(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare what the machines bring along. Different distributions have different kernels: each among its own."""

    def release(node: NodeFacts) -> tuple[str, str, str]:
        return node.distribution.id, node.distribution.version_id, node.machine

    for alike in _by(nodes, release):
        kernels = {host: node.kernel for host, node in alike.items()}
        yield from compare("versions", "warning", "the kernel", kernels, "update and restart the odd ones")
    drivers = {host: node.cuda.driver_version for host, node in nodes.items()}
    yield from compare("versions", "warning", "NVIDIA's driver", drivers, "install the same driver on all nodes")
    toolkits = {host: node.cuda.toolkit_version for host, node in nodes.items()}
    yield from compare("versions", "warning", "the CUDA toolkit", toolkits, "install the same toolkit on all nodes")


def _by(nodes: Mapping[str, NodeFacts], key: Callable[[NodeFacts], Hashable]) -> list[dict[str, NodeFacts]]:
    groups: dict[Hashable, dict[str, NodeFacts]] = defaultdict(dict)
    for host, node in nodes.items():
        groups[key(node)][host] = node
    return list(groups.values())


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


_RULES: tuple[Callable[[Mapping[str, NodeFacts]], Iterator[Finding]], ...] = (
    _missing,
    _artifacts,
    _framework,
    _libraries,
    _system,
)


# --- what is wrong with a node's NCCL, framework, Horovod or driver ---------------------------------------------------

# No process is started. The rules compare the facts of the nodes. So a fault has a name before a job hangs or loads the
# wrong library.
_BUNDLED = "/site-packages/nvidia/nccl/lib/"
_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}


def stack_findings(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Compare the stacks of nodes, each with itself and with the others.

    Args:
        nodes: facts by inventory name, gathered with :data:`ARTIFACTS` and :data:`LIBRARIES`. An artifact that is
            damaged is not looked at: the check of artifacts names it.
        nccl_align: by inventory name, what the variable of that name says: with ``report``, a framework that brings an
            NCCL of its own version is no finding. For nodes that are not in it, ``framework``, the role's default.

    Returns:
        What is wrong, one rule after the other, within a rule in the order of the nodes. Where nodes differ, those that
        are not like most are named, and all of them where there is no majority. A component that no node has is not
        reported.
    """
    aligned = nccl_align or {}
    seen = [_Seen(host, node, aligned.get(host, "framework")) for host, node in nodes.items()]
    return tuple(finding for rule in _STACK_RULES for finding in rule(seen))


class _Seen:
    """A node with its artifacts and libraries at hand."""

    def __init__(self, host: str, node: NodeFacts, nccl_align: str) -> None:
        self.host, self.node, self.stack, self.nccl_align = host, node, training_stack.of(node), nccl_align

    def present(self, name: str) -> Artifact | None:
        return artifact(self.node, name)

    def whole(self, name: str) -> Artifact | None:
        found = self.present(name)
        return found if found is not None and found.ok else None

    def library(self, soname: str) -> Library | None:
        return next((found for found in self.node.libraries if found.soname == soname), None)

    @property
    def framework(self) -> dict[str, Any]:
        found = self.whole("python_env")
        return found.framework if found else {}

    @property
    def kind(self) -> tuple[str, bool]:
        """Nodes of one kind are meant to have the same: those of a platform, with or without a GPU."""
        return _kind(self.node)

    def finding(self, cause: str, cure: str = PROVISION) -> Finding:
        return Finding("stack", "error", (self.host,), cause, cure)


def _stack_missing(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    """Name who lacks what nodes of the same kind have; without a framework, a node is not meant to have Horovod."""
    for title, name in (("NCCL", "nccl"), ("Horovod", "horovod")):
        having = {node.kind for node in nodes if node.present(name)}
        for node in nodes:
            meant = name != "horovod" or node.stack.framework
            if node.kind in having and meant and not node.present(name):
                yield node.finding(f"{title} is missing, and other nodes of its platform have it")


def _unlike(
    nodes: Sequence[_Seen], what: str, value: Callable[[_Seen], str], cure: str = PROVISION
) -> Iterator[Finding]:
    """Name who differs; an empty value takes no part."""
    values = {node.host: value(node) for node in nodes if value(node)}
    found = majority(values)
    for node in nodes:
        if node.host in found.odd:
            mine = values[node.host]
            others = ", ".join(sorted(set(values.values()) - {mine}))
            rest = f"most nodes have {found.usual}" if found.usual else f"others have {others}, with no majority"
            yield node.finding(f"{what} {mine} is installed, and {rest}", cure)


def _nccl_unlike(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    def version(node: _Seen) -> str:
        return node.stack.nccl

    named = list(_unlike(nodes, "NCCL", version))
    yield from named
    told = {host for finding in named for host in finding.hosts}
    platforms: dict[str, list[_Seen]] = defaultdict(list)
    for node in nodes:
        if node.host not in told:
            platforms[node.node.platform].append(node)
    for alike in platforms.values():
        yield from _unlike(alike, "build", lambda node: _nccl_build(node.whole("nccl")))


def _nccl_build(artifact: Artifact | None) -> str:
    return f"{artifact.version}-{artifact.key} of NCCL" if artifact else ""


def _framework_unlike(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    """Compare name and release alone: a CPU and a CUDA build of one release train together."""

    def release(node: _Seen) -> str:
        if not node.stack.framework:
            return ""
        return f"{_title(node.stack)} {node.stack.framework_version.partition('+')[0]}"

    yield from _unlike(nodes, "framework", release)


def _title(stack: training_stack.NodeStack) -> str:
    return _FRAMEWORKS.get(stack.framework, stack.framework)


def _nccl_loaded(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        artifact, library = node.whole("nccl"), node.library("libnccl.so.2")
        if artifact is None or library is None:
            continue
        if not library.path:
            yield node.finding(
                f"no session finds libnccl.so.2, although NCCL {artifact.version} is installed in {artifact.target}: "
                "/etc/ld.so.cache does not name it",
                f"run 'ldconfig' there, or {PROVISION}",
            )
        else:
            yield from _other_file(node, "NCCL", artifact, library)


def _mpi_loaded(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        artifact, library = node.whole("openmpi"), node.library("libmpi.so.40")
        # The cluster's programs have a RUNPATH, which LD_LIBRARY_PATH alone comes before.
        if artifact is not None and library is not None and library.path and library.via == "LD_LIBRARY_PATH":
            yield from _other_file(node, "Open MPI", artifact, library)


def _other_file(node: _Seen, title: str, artifact: Artifact, library: Library) -> Iterator[Finding]:
    """Tell of a library that a session takes instead of the installed one."""
    path = (
        f"{artifact.link}/lib/{library.soname}"  # of an NCCL of the system's packages, the artifact holds links alone
    )
    installed = next((entry for entry in library.others if entry.path == path), None)
    if library.real == (installed.real if installed else "") or library.real.startswith(f"{artifact.target}/"):
        return
    folder = PurePosixPath(library.path).parent
    version = f"{title} {library.version}" if library.version else f"another {title}"
    whose = "the framework's own " if _BUNDLED in library.real else ""
    if library.via == "LD_LIBRARY_PATH":
        why = f"LD_LIBRARY_PATH names {folder} first"
        cure = f"take {folder} out of LD_LIBRARY_PATH, which /etc/environment or a start-up file of the shell sets"
    elif library.via == "default folders":
        why = f"/etc/ld.so.cache does not name the installed one and {folder} is searched anyway"
        cure = f"run 'ldconfig' there, or {PROVISION}"
    elif folder == PurePosixPath(artifact.link).parent / "lib/clusterctl":
        why, cure = f"it leads to {library.real}", PROVISION
    else:
        why = f"{library.via} names {folder} first"
        cure = f"remove the package or the file in /etc/ld.so.conf.d that brought {folder}, and run 'ldconfig'"
    yield node.finding(
        f"a session loads {library.path} ({whose}{version}) and not {path} ({title} {artifact.version}), because {why}",
        cure,
    )


def _bundled(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    """Tell where a CUDA framework brings another NCCL than the cluster's, unless the user wanted no more than a report.

    It loads its own by RPATH; the loader's path and cache have no say.
    """
    for node in nodes:
        artifact, library = node.whole("nccl"), node.library("libnccl.so.2")
        stack = node.stack
        if artifact is None or library is None or not stack.framework_cuda or node.nccl_align == "report":
            continue
        found = next((entry for entry in (library, *library.others) if _BUNDLED in entry.real), None)
        if found is not None and found.version and found.version != artifact.version:
            yield node.finding(
                f"{_title(stack)} {stack.framework_version} loads its own NCCL {found.version} ({found.path}), and the "
                f"cluster's is {artifact.version}",
                "set nccl_align to framework (the cluster takes the framework's version) or to cluster (the framework "
                f"loads the cluster's), and {PROVISION}",
            )


def _driver_too_old(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        cuda, stack = node.node.cuda, node.stack
        if not cuda.driver_version:
            continue
        able = cuda.major or 0
        built = (
            (f"NCCL {stack.nccl}", training_stack.major(stack.nccl_cuda), "set nccl_cuda to"),
            (
                f"{_title(stack)} {stack.framework_version}",
                training_stack.major(stack.framework_cuda),
                "take a build of it for CUDA",
            ),
        )
        for name, major, choice in built:
            if major <= able:
                continue
            branch = cuda.first_branches.get(major)
            cures = [f"install driver {branch} or later" if branch else f"install a driver that runs CUDA {major}"]
            cures += [f"{choice} {able} and run 'clusterctl provision' again"] if able else []
            runs = f"runs CUDA {able} at most" if able else "is older than any that is known here"
            yield node.finding(
                f"{name} is built for CUDA {major}, and driver {cuda.driver_version} {runs}", ", or ".join(cures)
            )


def _cpu_build_beside_gpus(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        stack = node.stack
        if stack.gpus and stack.framework and not stack.framework_cuda:
            count = "1 GPU" if stack.gpus == 1 else f"{stack.gpus} GPUs"
            yield node.finding(
                f"{_title(stack)} {stack.framework_version} is a CPU build beside {count}",
                "set python_env_framework_build to auto or cuda, and run 'clusterctl provision' again",
            )


def _built_against(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        yield from _against(node, "Open MPI", "openmpi", "ucx", "UCX")
        yield from _against(node, "mpi4py", "mpi4py", "openmpi", "Open MPI")
        yield from _against(node, "Horovod", "horovod", "openmpi", "Open MPI")
        yield from _against(node, "Horovod", "horovod", "nccl", "NCCL")
        yield from _against_framework(node)


def _against(node: _Seen, title: str, name: str, other: str, other_title: str) -> Iterator[Finding]:
    """Compare the key that something was built against with the key of what is installed."""
    artifact, installed = node.whole(name), node.present(other)
    key = str(artifact.inputs.get(other) or "") if artifact else ""
    if artifact is None or not key or (installed is not None and (not installed.ok or installed.key == key)):
        return
    rest = f"and no {other_title} is installed"
    if installed is not None:
        rest = f"and {installed.version} (key {installed.key}) is installed"
    yield node.finding(f"{title} {artifact.version} was built against another {other_title} (key {key}), {rest}")


def _against_framework(node: _Seen) -> Iterator[Finding]:
    artifact, installed = node.whole("horovod"), node.framework
    built = artifact.framework if artifact else {}
    if artifact is None or not built.get("name"):
        return
    differing = [key for key in built if key in installed and built[key] != installed[key]]
    words = ""
    if not installed.get("name"):
        words = f"{_build_of(built)}, and no framework is installed"
    elif differing and _build_of(built) == _build_of(installed):
        words = f"another build of {_build_of(built)} than the installed one"
    elif differing:
        words = f"{_build_of(built)}, and {_build_of(installed)} is installed"
    if words:
        yield node.finding(f"Horovod {artifact.version} was built against {words}")


def _build_of(framework: Mapping[str, Any]) -> str:
    name = str(framework.get("name", ""))
    cuda = framework.get("cuda")
    return f"{_FRAMEWORKS.get(name, name)} {framework.get('version', '')} ({f'CUDA {cuda}' if cuda else 'CPU'})"


_STACK_RULES: tuple[Callable[[Sequence[_Seen]], Iterator[Finding]], ...] = (
    _stack_missing,
    _nccl_unlike,
    _nccl_loaded,
    _bundled,
    _driver_too_old,
    _cpu_build_beside_gpus,
    _framework_unlike,
    _built_against,
    _mpi_loaded,
)
