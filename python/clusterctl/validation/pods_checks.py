"""Which checks run in the pods of a job, with which program, and what they find: no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.launch.validation_job import PlannedCheck, ranked
from clusterctl.validation.checks import base, registry, startup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.scheduler_options import PodsOptions
    from clusterctl.validation.checks.base import Check

_TORCHRUN = "torchrun"
_PROVISIONED = {
    "hello": "its C program is compiled by 'clusterctl provision'",
    "network": "it compares with the network that 'clusterctl provision' has chosen",
    "nccl": "it proves the NCCL that 'clusterctl provision' installs; torchrun proves that of PyTorch",
    "nccl_sweep": "it measures the NCCL that 'clusterctl provision' installs",
}
_TWICE = 2  # runs of a check that measures


@dataclass(frozen=True)
class PodsPlan:
    """The checks that pods run, in order, and why the others do not."""

    checks: tuple[Check, ...]
    left_out: Mapping[str, str]
    planned: tuple[PlannedCheck, ...]
    numbers: Mapping[str, tuple[int, ...]]  # by check, the places of its runs in ``planned``


def plan(checks: Sequence[Check], wish: PodsOptions, timeout_s: float | None = None) -> PodsPlan:
    """Choose the checks that can run in pods of this kind.

    Args:
        checks: what was asked for.
        wish: the pods.
        timeout_s: replaces the deadline of every check.
    """
    whys = {check.name: why_not(check, wish) for check in checks}
    chosen = tuple(check for check in checks if not whys[check.name])
    planned: list[PlannedCheck] = []
    numbers: dict[str, tuple[int, ...]] = {}
    site = site_of(wish)
    for check in chosen:
        deadline = timeout_s or startup.deadline_s(check, base.placed(check, site))
        one = PlannedCheck(check.name, _argv(check, site, wish, deadline), deadline, check.per_node)
        registration = registry.registrations().get(check.name)
        times = _TWICE if registration is not None and registration.measures else 1
        numbers[check.name] = tuple(range(len(planned), len(planned) + times))
        planned += [one] * times
    return PodsPlan(chosen, {name: why for name, why in whys.items() if why}, tuple(planned), numbers)


def why_not(check: Check, wish: PodsOptions) -> str:
    """Say why a check cannot run in pods of this kind, empty where it can."""
    if check.name in _PROVISIONED:
        return f"not in pods: {_PROVISIONED[check.name]}"
    if check.name not in registry.registrations():
        return "not in pods: its program lies on the nodes"
    if wish.kind != "mpijob":
        return "" if check.name == _TORCHRUN else "mpirun starts it; give --via mpijob"
    if check.name == _TORCHRUN:
        return "give --via pytorchjob, whose operator tells the pods where they meet"
    return check.absent(NodeStack()) and "not in pods: an MPIJob's image need not have it"


def site_of(wish: PodsOptions, version: str = "", names: Mapping[str, str] | None = None) -> base.Site:
    """Return the pods as a check sees them.

    Args:
        wish: the pods.
        version: the release of Open MPI.
        names: the host of each name that a pod gives itself.
    """
    hosts = ranked(wish)
    stack = NodeStack(
        gpus=wish.gpus_per_node, framework="pytorch", framework_cuda="of the image" if wish.gpus_per_node else ""
    )
    return base.Site(
        version=version,
        slots=dict.fromkeys(hosts, wish.ranks_per_pod),
        names=dict(names or {}),
        stack={} if wish.kind == "mpijob" else dict.fromkeys(hosts, stack),
    )


def _argv(check: Check, site: base.Site, wish: PodsOptions, deadline_s: float) -> tuple[str, ...]:
    """Return the argv of a check's program, by the image's own Python."""
    argv = check.program(base.placed(check, site), deadline_s)
    words = [wish.python, *argv[1:]]
    if check.name == _TORCHRUN:  # pod_runner.py puts in what the operator's variables say
        words[words.index("--first-node") + 1] = "{first}"
        words += ["--node", "{node}", "--port", "{port}"]
    return tuple(words)
