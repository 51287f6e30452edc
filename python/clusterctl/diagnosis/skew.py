"""What differs between the nodes of a cluster, and the findings in which that and everything else is told.

Pure: facts in, findings out. :func:`skew` is also the gate before jobs: a job on nodes that differ may hang, or give
right answers with the wrong library.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.diagnosis import stack_rules, training_stack
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, Severity, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from clusterctl.model.facts import Artifact, Library, NodeFacts


PROVISION = "run 'clusterctl provision' again"

# What every provisioned node has, and what some have; by artifact name, as people call it.
_NEEDED = {"openmpi": "Open MPI", "python_env": "the cluster's Python", "mpi4py": "mpi4py"}
_TITLES = {**_NEEDED, "horovod": "Horovod"}  # stack_rules compares NCCL
_NCCL = "libnccl.so.2"
_MPI = "libmpi.so.40"


def skew(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return what differs between nodes: errors should stop a job, warnings should not.

    Where nodes differ, those that are not like most are named, and all of them where there is no majority.

    Args:
        nodes: facts by inventory name, gathered with ``stack.ARTIFACTS`` and ``stack.LIBRARIES``. An artifact that is
            damaged is not looked at: the check of artifacts names it.
        nccl_align: by inventory name, the variable of that name; see :func:`stack_rules.findings`.
    """
    told = (finding for finding in stacked(nodes, nccl_align) if len(nodes) > len(finding.hosts))
    return ordered((*differences(nodes), *told))


def stacked(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return what :func:`stack_rules.findings` has to say, one finding for all nodes that share it."""
    return folded(stack_rules.findings(nodes, nccl_align))


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
        versions = {host: _version(node, name) for host, node in nodes.items()}
        found = list(compare("versions", severity, title, versions))
        yield from found
        told = {host for finding in found for host in finding.hosts}
        for alike in _by({host: node for host, node in nodes.items() if host not in told}, _kind):
            builds = {host: _build(node, name) for host, node in alike.items()}
            yield from compare("versions", severity, f"the build of {title}", builds)


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
    """Name who has no framework where nodes of its kind have one; stack_rules compares different ones."""
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
