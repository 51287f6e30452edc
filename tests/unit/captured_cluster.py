"""The containers on which the logs of tests/data/validation were captured, as checks see them."""

from __future__ import annotations

import dataclasses

from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.validation.checks import base, registry
from factory import captured_outcome

SLOTS = {"node1": 2, "node2": 2, "node3": 2, "node4": 2}
LIBRARIES = {
    "4.1.8": "/usr/local/openmpi-4.1.8-dev",
    "5.0.7": "/usr/local/openmpi-5.0.7-89fe42c1c26d8953",
}
OTHERS = {f"skew-{version}": f"{path}-other" for version, path in LIBRARIES.items()} | {
    "skew-4.1.8": "/usr/local/openmpi-4.1.8-other"
}
TRAINING_LIBRARY = "/usr/local/openmpi-5.0.7-ccfb70564932dd67"
CPU_NODE = NodeStack(
    framework="pytorch",
    framework_version="2.13.0+cpu",
    horovod="0.28.1",
    horovod_with="pytorch",
    horovod_gpu_operations="none",
)
GPU_NODE = dataclasses.replace(
    CPU_NODE, gpus=2, framework_cuda="13", framework_nccl="2.32.3", nccl="2.32.3", horovod_gpu_operations="NCCL"
)


def site(name: str) -> base.Site:
    """Return the nodes of a log by its name."""
    version = name.rpartition("-")[2]
    libraries = dict.fromkeys(SLOTS, LIBRARIES[version])
    if name in OTHERS:
        libraries["node3"] = OTHERS[name]
    return base.Site(
        version=version,
        slots=SLOTS,
        names={node: node for node in SLOTS},
        platforms=dict.fromkeys(SLOTS, "debian-12-x86_64"),
        libraries=libraries,
    )


def training_site(stack: NodeStack = CPU_NODE) -> base.Site:
    """Return the four containers on which the logs of the training checks were captured."""
    return dataclasses.replace(
        site("none-5.0.7"), libraries=dict.fromkeys(SLOTS, TRAINING_LIBRARY), stack=dict.fromkeys(SLOTS, stack)
    )


def judge(name: str, check: str) -> base.Judgement:
    """Judge a log as the outcome of a check."""
    return registry.select([check])[0].judge(site(name), captured_outcome(name))


def judge_training(name: str, check: str) -> base.Judgement:
    """Judge a log of a training check."""
    return registry.select([check])[0].judge(training_site(), captured_outcome(name))
