"""Rules about the training stack: what is wrong with a node's NCCL, framework, Horovod or driver.

No process is started. The rules compare the facts of the nodes. So a fault has a name before a job hangs or loads the
wrong library.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from clusterctl.diagnosis.training_stack import NodeStack, of
from clusterctl.model.findings import Finding, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterctl.model.facts import Artifact, Library, NodeFacts


_AGAIN = "run 'clusterctl provision' again"


_BUNDLED = "/site-packages/nvidia/nccl/lib/"


_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}


def findings(nodes: Mapping[str, NodeFacts], nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Compare the stacks of nodes, each with itself and with the others.

    Args:
        nodes: facts by inventory name, gathered with :data:`ARTIFACTS` and :data:`LIBRARIES`. An artifact that is
            damaged is not looked at: the check of artifacts names it.
        nccl_align: by inventory name, what the variable of that name says: with ``report``, a framework that brings an
            NCCL of its own version is no finding. For nodes that are not in it, ``framework``, the role's default.

    Returns:
        What is wrong, one rule after the other, within a rule in the order of the nodes. Where nodes differ, those that
        are not like most are named, and all of them where there is no majority. What is nowhere is not missed.
    """
    aligned = nccl_align or {}
    seen = [_Seen(host, node, aligned.get(host, "framework")) for host, node in nodes.items()]
    return tuple(finding for rule in _RULES for finding in rule(seen))


class _Seen:
    """A node with its artifacts and libraries at hand."""

    def __init__(self, host: str, node: NodeFacts, nccl_align: str) -> None:
        self.host, self.node, self.stack, self.nccl_align = host, node, of(node), nccl_align
        self._artifacts = {artifact.link: artifact for artifact in node.artifacts}
        self._libraries = {library.soname: library for library in node.libraries}

    def present(self, name: str) -> Artifact | None:
        """Return an artifact that is there, whole or not."""
        artifact = self._artifacts.get(self.node.layout.link(name))
        return artifact if artifact is not None and artifact.target else None

    def whole(self, name: str) -> Artifact | None:
        artifact = self.present(name)
        return artifact if artifact is not None and artifact.ok else None

    def library(self, soname: str) -> Library | None:
        return self._libraries.get(soname)

    @property
    def framework(self) -> dict[str, Any]:
        artifact = self.whole("python_env")
        return artifact.framework if artifact else {}

    @property
    def kind(self) -> tuple[str, bool]:
        """Nodes of one kind are meant to have the same: those of a platform, with or without a GPU."""
        return self.node.platform, self.stack.gpus > 0

    def finding(self, cause: str, cure: str = _AGAIN) -> Finding:
        return Finding("stack", "error", (self.host,), cause, cure)


def _missing(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    """Name who lacks what nodes of the same kind have; without a framework, a node is not meant to have Horovod."""
    for title, name in (("NCCL", "nccl"), ("Horovod", "horovod")):
        having = {node.kind for node in nodes if node.present(name)}
        for node in nodes:
            meant = name != "horovod" or node.stack.framework
            if node.kind in having and meant and not node.present(name):
                yield node.finding(f"{title} is missing, and other nodes of its platform have it")


def _unlike(nodes: Sequence[_Seen], what: str, value: Callable[[_Seen], str], cure: str = _AGAIN) -> Iterator[Finding]:
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
        yield from _unlike(alike, "build", lambda node: _build(node.whole("nccl")))


def _build(artifact: Artifact | None) -> str:
    return f"{artifact.version}-{artifact.key} of NCCL" if artifact else ""


def _framework_unlike(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    """Compare name and release alone: a CPU and a CUDA build of one release train together."""

    def release(node: _Seen) -> str:
        if not node.stack.framework:
            return ""
        return f"{_title(node.stack)} {node.stack.framework_version.partition('+')[0]}"

    yield from _unlike(nodes, "framework", release)


def _title(stack: NodeStack) -> str:
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
                f"run 'ldconfig' there, or {_AGAIN}",
            )
        else:
            yield from _other_file(node, "NCCL", artifact, library)


def _mpi_loaded(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        artifact, library = node.whole("openmpi"), node.library("libmpi.so.40")
        if artifact is not None and library is not None and library.path and library.via != "default folders":
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
        cure = f"run 'ldconfig' there, or {_AGAIN}"
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
                f"loads the cluster's), and {_AGAIN}",
            )


def _major(text: str) -> int:
    head = text.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _driver_too_old(nodes: Sequence[_Seen]) -> Iterator[Finding]:
    for node in nodes:
        cuda, stack = node.node.cuda, node.stack
        if not cuda.driver_version:
            continue
        able = cuda.major or 0
        built = (
            (f"NCCL {stack.nccl}", _major(stack.nccl_cuda), "set nccl_cuda to"),
            (f"{_title(stack)} {stack.framework_version}", _major(stack.framework_cuda), "take a build of it for CUDA"),
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


_RULES: tuple[Callable[[Sequence[_Seen]], Iterator[Finding]], ...] = (
    _missing,
    _nccl_unlike,
    _nccl_loaded,
    _bundled,
    _driver_too_old,
    _cpu_build_beside_gpus,
    _framework_unlike,
    _built_against,
    _mpi_loaded,
)
