"""The training stack of a node: NCCL, framework and Horovod with their versions, read from its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.launch.mpirun_job import of_others
from clusterctl.model.nodeset import folded
from clusterctl.model.rank_slots import gpu_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import Artifact, Gpu, NodeFacts

# What is asked of every node about the stack: each artifact with the inputs that tell what it was built against. Links
# and patterns are below the prefix of the software.
ARTIFACTS: tuple[dict[str, Any], ...] = (
    {"name": "ucx", "link": "ucx"},
    {"name": "openmpi", "link": "openmpi", "inputs": ["ucx", "configure", "existing", "library"]},
    {"name": "cpython", "link": "cpython"},
    {"name": "python_env", "link": "python_env", "inputs": ["framework", "existing", "python"]},
    {"name": "mpi4py", "link": "mpi4py", "inputs": ["openmpi", "taken_from"]},
    {"name": "nccl", "link": "nccl", "inputs": ["cuda", "source"]},
    {
        "name": "horovod",
        "link": "horovod",
        "inputs": ["openmpi", "nccl", "framework", "gpu_operations", "with", "gloo", "taken_from"],
    },
)

# Which files a session's loader takes; beside them the installed ones, and the NCCL in a framework's own reach.
LIBRARIES: tuple[dict[str, Any], ...] = (
    {"soname": "libmpi.so.40", "also": ["openmpi/lib/libmpi.so.40"]},
    {
        "soname": "libnccl.so.2",
        "also": [
            "nccl/lib/libnccl.so.2",
            "python_env/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2",
        ],
    },
)


@dataclass(frozen=True)
class NodeStack:
    """What one node has; an empty text means that it has none.

    ``framework`` is pytorch or tensorflow, ``framework_cuda`` the CUDA major that it was built for and
    ``framework_nccl`` the NCCL version that it brings along. ``nccl`` and ``horovod`` are versions.
    ``horovod_gpu_operations`` is NCCL, MPI or none. ``gpus`` counts what a rank can take for its own: GPUs that jobs
    can use, or their MIG instances. ``most_instances`` is the largest number of MIG instances of one GPU, and
    ``driver_cuda`` the newest CUDA major that the driver runs. ``idle_gpus`` names in words the GPUs that jobs cannot
    use, and ``idle_why`` says why in one word.
    """

    gpus: int = 0
    most_instances: int = 0
    driver_cuda: int = 0
    idle_gpus: str = ""
    idle_why: str = ""
    framework: str = ""
    framework_version: str = ""
    framework_cuda: str = ""
    framework_nccl: str = ""
    nccl: str = ""
    nccl_cuda: str = ""
    horovod: str = ""
    horovod_gpu_operations: str = ""
    horovod_with: str = ""


def versions(nodes: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return the releases that figures depend on, by name; those of nodes that differ are joined by a plus."""
    found: dict[str, set[str]] = {}
    for node in nodes.values():
        has = of(node)
        named = {
            "openmpi": node.artifact("openmpi").version,
            "ucx": found_ucx.version if (found_ucx := node.artifact("ucx")).ok else "",
            "nccl": has.nccl,
            has.framework: has.framework_version,
            "horovod": has.horovod,
            "driver": node.cuda.driver_version,
        }
        for name, version in named.items():
            if name and version:
                found.setdefault(name, set()).add(version)
    return {name: "+".join(sorted(several)) for name, several in sorted(found.items())}


def taken(nodes: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return whose mpi4py and Horovod come from an environment of the user, a clause for each place."""
    found: dict[str, list[str]] = {}
    for title in ("mpi4py", "Horovod"):
        for host, node in nodes.items():
            artifact = node.artifact(title.lower())
            if artifact.ok and (place := artifact.inputs.get("taken_from")):
                found.setdefault(f"{title} {artifact.version} is that of {place}", []).append(host)
    return tuple(f"{folded(hosts)}: {words}, built against the cluster's Open MPI." for words, hosts in found.items())


def environment_notes(nodes: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return which Open MPI and Python environment of the user nodes have, a sentence each; () for clusterctl's own."""
    found: dict[str, list[str]] = {}
    for host, node in nodes.items():
        inputs = node.artifact("python_env").inputs
        if inputs.get("existing"):
            has = of(node)
            framework = f" and {has.framework} {has.framework_version}" if has.framework else ""
            words = f"{inputs['existing']} with Python {inputs.get('python')}{framework}"
            found.setdefault(words, []).append(host)
    return (
        *(f"{hosts} ran the checks with {openmpi}." for hosts, openmpi in of_others(nodes)),
        *(
            f"{folded(hosts)} ran the checks in {words}, an environment that clusterctl did not make."
            for words, hosts in found.items()
        ),
        *taken(nodes),
    )


def of(node: NodeFacts) -> NodeStack:
    """Return what a node has, by its artifacts that are whole."""
    found = {artifact.link: artifact for artifact in node.artifacts if artifact.ok}

    def inputs(name: str) -> dict[str, Any]:
        artifact = found.get(node.layout.link(name))
        return artifact.inputs if artifact else {}

    environment = found.get(node.layout.link("python_env"))
    framework = environment.framework if environment else {}
    horovod = inputs("horovod")
    idle = idle_gpus(node)
    return NodeStack(
        gpus=len(gpu_devices(node)),
        most_instances=max((len(gpu.instances) for gpu in node.gpus if gpu.usable), default=0),
        driver_cuda=(node.cuda.major or 0) if node.cuda.driver_version else 0,
        idle_gpus=f"{counted(len(idle))}: {idle[0].problem}" if idle else "",
        idle_why=idle[0].unusable if idle else "",
        framework=str(framework.get("name", "")),
        framework_version=str(framework.get("version", "")),
        framework_cuda=str(framework.get("cuda", "")),
        framework_nccl=str(framework.get("nccl", "")),
        nccl=_version(found.get(node.layout.link("nccl"))),
        nccl_cuda=str(inputs("nccl").get("cuda", "")),
        horovod=_version(found.get(node.layout.link("horovod"))),
        horovod_gpu_operations=str(horovod.get("gpu_operations", "")),
        horovod_with=str(horovod.get("with", "")),
    )


def idle_gpus(node: NodeFacts) -> list[Gpu]:
    """Return the GPUs that jobs should be able to use, and cannot.

    A card of the class of screens without NVIDIA's driver is left out, and so is a GPU of a virtual machine.
    """
    return [
        gpu
        for gpu in node.gpus
        if gpu.unusable and gpu.driver != "vfio-pci" and not (gpu.display and gpu.unusable == "driver")
    ]


def counted(number: int) -> str:
    """Return a number of GPUs in words."""
    return "1 GPU" if number == 1 else f"{number} GPUs"


def major(version: str) -> int:
    """Return the first number of a version, 0 where it has none."""
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _version(artifact: Artifact | None) -> str:
    return artifact.version if artifact else ""
