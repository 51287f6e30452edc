"""Can jobs use the GPUs of the nodes, and are they alike: number, model, MIG instances?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.skew import compare
from clusterctl.model.findings import Finding
from clusterctl.model.rank_slots import gpu_devices
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.facts import Gpu, NodeFacts
    from clusterctl.model.findings import Severity

ORDER = 51
_SHOWN = 4
_CURES = {
    "driver": "install NVIDIA's driver{branch} and run 'clusterctl provision' again",
    "container": (
        "run jobs in pods ('clusterctl render'), or install NVIDIA's driver on the host (driver.enabled=false for the "
        "GPU operator) and run 'clusterctl provision' again"
    ),
    "device": "give the container its GPUs, or run 'nvidia-modprobe -c 0 -u' on a host",
    "library": (
        "install the driver's libraries in the version of its modules (package libcuda1, libnvidia-compute or "
        "nvidia-driver-cuda-libs) and run 'ldconfig'"
    ),
    "versions": "restart the node, or reload the driver's modules, so that kernel and library are of one driver",
    "mig": (
        "make instances ('nvidia-smi mig -lgip' lists their sizes, 'nvidia-smi mig -cgi SIZE -C' makes them), or turn "
        "MIG off with 'nvidia-smi -mig 0'"
    ),
}
# On these hosts the GPUs are meant for pods, or for other containers; the host is as it was set up.
_INTENDED = ("container", "device")


def findings(view: View) -> Iterator[Finding]:
    """Return GPUs that jobs cannot use, and how nodes with GPUs differ; a node may be meant to have none."""
    nodes = view.nodes
    for host, node in nodes.items():
        yield from _idle(host, node)
    able = {host: node for host, node in nodes.items() if node.gpus}
    counts = {host: str(len(node.gpus)) for host, node in able.items()}
    cure = "look with 'nvidia-smi' and in the kernel's log for one that has dropped out"
    yield from compare("gpus", "error", "the number of GPUs", counts, cure)
    models = {host: ", ".join(sorted({gpu.name for gpu in node.gpus if gpu.name})) for host, node in able.items()}
    cure = "run jobs on nodes of one model with --limit, since the slowest sets the pace"
    yield from compare("gpus", "warning", "the GPUs' model", models, cure)
    yield from compare("gpus", "warning", "MIG", _instances(able), "give the GPUs of all nodes the same MIG instances")


def _idle(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Name the GPUs that jobs cannot use, by reason; a screen's card counts where something is built for GPUs."""
    stack = training_stack.of(node)
    found: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in node.gpus:
        meant = not gpu.display or gpu.driver == "nvidia" or stack.nccl or stack.framework_cuda
        if not gpu.usable and gpu.driver != "vfio-pci" and meant:
            found.setdefault((gpu.unusable or "driver", gpu.problem), []).append(gpu)
    for (why, problem), gpus in found.items():
        places = and_more([gpu.bus for gpu in gpus], _SHOWN)
        cause = f"jobs cannot use {training_stack.counted(len(gpus))} ({places})"
        severity: Severity = "warning" if why in _INTENDED else "error"
        yield Finding("gpus", severity, (host,), f"{cause}: {problem or 'without a driver'}", _cure(why, node, stack))


def _cure(why: str, node: NodeFacts, stack: NodeStack) -> str:
    wanted = max(_major(stack.nccl_cuda), _major(stack.framework_cuda))
    branch = node.cuda.first_branches.get(wanted, 0)
    return _CURES[why].format(branch=f", {branch} or later," if branch else "")


def _major(text: str) -> int:
    head = text.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _instances(nodes: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return the number of MIG instances by node, in words, where any node has one."""
    if not any(gpu.instances for node in nodes.values() for gpu in node.gpus):
        return {}
    return {
        host: f"{len(gpu_devices(node))} instances" if any(gpu.instances for gpu in node.gpus) else "off"
        for host, node in nodes.items()
    }
