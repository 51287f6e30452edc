# SPDX-License-Identifier: Apache-2.0
"""The framework in a set of wheels, its release for a platform, and the CUDA that a platform can run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import framework_builds
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Target

# The package of each framework; the first one present counts.
_FRAMEWORKS = (("torch", "pytorch"), ("tensorflow", "tensorflow"), ("tensorflow-cpu", "tensorflow"))
_NCCL = re.compile(r"nvidia-nccl-cu(?P<cuda>\d+)")
_CPU = re.compile(r"\+cpu$")
_LOCAL_CUDA = re.compile(r"\+cu(?P<cuda>\d{2,})\d$")
_MOST_NAMED = 4


def framework_in_wheels(wheels: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return which framework pinned wheels hold.

    Args:
        wheels: entries with ``name`` (canonical), ``version`` and ``sha256``.
    """
    by_name = {str(wheel["name"]): wheel for wheel in wheels}
    empty = {"name": "", "version": "", "cuda": "", "nccl": "", "sha256": ""}
    package, framework = next((pair for pair in _FRAMEWORKS if pair[0] in by_name), ("", ""))
    if not package:
        return empty
    version = str(by_name[package]["version"])
    local = _LOCAL_CUDA.search(version)
    cuda, nccl = local["cuda"] if local else "", ""
    for name, wheel in by_name.items():
        bundled = _NCCL.fullmatch(name)
        if bundled and not _CPU.search(version):
            cuda, nccl = bundled["cuda"], str(wheel["version"])
    return {
        "name": framework,
        "version": version,
        "cuda": cuda,
        "nccl": nccl,
        "sha256": str(by_name[package]["sha256"]),
    }


def framework_choice(framework: str, version: str, build: str) -> list[list[str]]:
    """Return sets of requirements that install a framework, the best first; empty without a framework.

    PyTorch's indexes mark builds by the local part of the version (``+cpu``, ``+cu126``). The plain version is the
    publisher's default, with CUDA. TensorFlow's builds have different package names.

    Args:
        framework: ``pytorch``, ``tensorflow`` or ``none``.
        version: its release; a version of PyTorch with a local part is taken as it is.
        build: ``cpu`` or ``cuda``.
    """
    if framework == "pytorch":
        if "+" in version:
            return [[f"torch=={version}"]]
        plain = f"torch=={version}"
        return [[f"{plain}+cpu"], [plain]] if build == "cpu" else [[f"{plain},!={version}+cpu"]]
    if framework == "tensorflow":
        if build == "cpu":
            return [[f"tensorflow-cpu=={version}"], [f"tensorflow=={version}"]]
        return [[f"tensorflow[and-cuda]=={version}"]]
    return []


def framework_release(framework: str, platform: str, build: str, version: str = "") -> dict[str, str]:
    """Return the release of a framework for a platform's Python and C library.

    Args:
        framework: ``pytorch``, ``tensorflow`` or ``none``.
        platform: the platform's id.
        build: ``cpu`` or ``cuda``.
        version: the release that the user names; empty leaves it to the collection's table.

    Returns:
        ``version``, and ``problem``: one sentence where the platform cannot have the framework, empty otherwise.
    """
    if framework == "none":
        return {"version": "", "problem": ""}
    target = Target.of(platform)
    return {
        "version": version or framework_builds.release(framework, build, target),
        "problem": framework_builds.refusal(framework, version, build, target),
    }


def platform_with_python(platform: str, version: str) -> str:
    """Return a platform's id with another Python; the same id where the version is empty.

    Args:
        platform: the platform's id, which names the node's own Python.
        version: a release of Python, of which the first two numbers count.
    """
    if not version:
        return platform
    return re.sub(r"-py3\.\d+(?=-|$)", f"-py{'.'.join(version.split('.')[:2])}", platform, count=1)


def drivers_below(members: Sequence[Mapping[str, Any]], platform: str, cuda: str) -> list[dict[str, Any]]:
    """Return the hosts of a platform whose NVIDIA driver is too old for programs of a CUDA major.

    Within a major every driver runs every program; a newer major needs a newer driver (NVIDIA's CUDA compatibility
    guide, minor version compatibility).

    Args:
        members: the cluster's hosts as preflight describes them.
        platform: the platform's id.
        cuda: the major that programs were built for; '' without CUDA.

    Returns:
        ``name``, ``driver`` (version) and ``cuda`` (the major it can run) of each host.
    """
    wanted = int(cuda or 0)
    return [
        {"name": str(member["name"]), "driver": str(its.get("driver_version") or ""), "cuda": int(its["driver_major"])}
        for member in members
        if member["platform"] == platform
        and (its := member.get("cuda") or {}).get("driver_major")
        and int(its["driver_major"]) < wanted
    ]


def platform_cuda(members: Sequence[Mapping[str, Any]], platform: str) -> dict[str, Any]:
    """Return the GPUs, driver and CUDA toolkit of a platform's hosts.

    Args:
        members: the cluster's hosts as preflight describes them.
        platform: the platform's id.

    Returns:
        ``gpus``: names of hosts with a GPU that NVIDIA's driver has taken; ``driver``: the lowest CUDA major that a
        driver there can run, 0 where no host has a driver; ``toolkit``: the lowest major of an installed toolkit, 0
        without one.
    """
    its = [member for member in members if member["platform"] == platform]
    drivers = [int(cuda["driver_major"]) for member in its if (cuda := member.get("cuda") or {}).get("driver_major")]
    toolkits = [
        int(str(cuda["toolkit_version"]).partition(".")[0])
        for member in its
        if (cuda := member.get("cuda") or {}).get("toolkit_version")
    ]
    return {
        "gpus": [str(member["name"]) for member in its if member.get("gpus")],
        "driver": min(drivers, default=0),
        "toolkit": min(toolkits, default=0),
    }


def gpus_left_idle(members: Sequence[Mapping[str, Any]], platform: str, framework: str, build: str) -> str:
    """Return one sentence where a framework for CPUs would be installed beside GPUs that jobs cannot use; '' elsewhere.

    Args:
        members: the cluster's hosts as preflight describes them.
        platform: the platform's id.
        framework: ``pytorch``, ``tensorflow`` or ``none``.
        build: what the user asks for: ``auto``, ``cpu`` or ``cuda``.
    """
    its = [member for member in members if member["platform"] == platform]
    idle = [member for member in its if member.get("idle_gpus")]
    if build != "auto" or framework == "none" or not idle or any(member.get("gpus") for member in its):
        return ""
    names = [str(member["name"]) for member in idle]
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    verb = "has" if len(names) == 1 else "have"
    return (
        f"{', '.join(names[:_MOST_NAMED])}{rest} {verb} {idle[0]['idle_gpus']}; a framework for CPUs would leave them"
        " unused. Make them usable ('clusterctl doctor' has the cure), or set python_env_framework_build to cpu."
    )
