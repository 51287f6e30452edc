"""Which operations for GPUs Horovod gets where nobody names them, before and after NCCL is installed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.filter import artifact, stack
from role_templates import rendered, variables_of

PLATFORM = "debian-11-x86_64-glibc2.31-py3.9"
CUDA = {"name": "pytorch", "version": "2.8.0", "cuda": "12", "nccl": "2.27.3", "sha256": "0" * 64}
CPU = {"name": "pytorch", "version": "2.13.0+cpu", "cuda": "", "nccl": "", "sha256": "0" * 64}
BARE = {"name": "node1", "platform": PLATFORM, "gpus": 0, "cuda": {}}
GPUS = {**BARE, "gpus": 8, "cuda": {"driver_major": 12}}
TOOLKIT = {**BARE, "cuda": {"toolkit_version": "12.8"}}
COMES = {"nccl_decided": {"hosts": ["node1"]}}
STAYS_AWAY = {"nccl_decided": {"hosts": []}}
INSTALLED = {**COMES, "nccl_installed": {"key": "0123456789abcdef"}}


def test_the_build_names_the_headers_that_newer_compilers_do_not_bring_unasked() -> None:
    """Without them, GCC 16 refuses five files: uint8_t in Gloo, std::string and std::logic_error in Horovod."""
    given = {**variables_of("horovod"), "preflight_node": {"platform": PLATFORM}, "horovod_cxxflags": "-O1"}
    given |= {"preflight_members": [BARE], "horovod_framework": CPU}
    flags = rendered("__horovod_build_environment.CLUSTERCTL_CXXFLAGS", given, (artifact, stack)).split()
    assert flags[0] == "-O1"
    assert [flags[at + 1] for at, word in enumerate(flags) if word == "-include"] == ["cstdint", "stdexcept", "string"]


def operations(member: dict[str, Any], framework: dict[str, str], **more: Any) -> str:
    given = {
        "inventory_hostname": "node1",
        "preflight_members": [member],
        "preflight_node": {"platform": PLATFORM},
        "horovod_framework": framework,
        **more,
    }
    variables = {**variables_of("horovod"), **given}
    return str(rendered("__horovod_gpu_operations", variables, (artifact, stack)))


@pytest.mark.parametrize("nccl", [COMES, INSTALLED])
def test_a_cuda_framework_on_nodes_without_gpus_needs_no_nvcc(nccl: dict[str, Any]) -> None:
    """The index has no CPU build of PyTorch for Python 3.9, so such nodes get the one with CUDA."""
    assert operations(BARE, CUDA, **nccl) == "none"
    assert operations(BARE, CUDA, horovod_gpu_operations="NCCL", **nccl) == "NCCL"


@pytest.mark.parametrize("nccl", [COMES, INSTALLED])
@pytest.mark.parametrize("member", [GPUS, TOOLKIT])
def test_what_can_not_be_compiled_is_known_before_nccl_is_installed(
    nccl: dict[str, Any], member: dict[str, Any]
) -> None:
    assert operations(member, CUDA, **nccl) == "NCCL"
    assert operations(member, CPU, **nccl) == "none"


def test_a_named_toolkit_is_one() -> None:
    assert operations(BARE, CUDA, horovod_cuda_home="/opt/cuda-12.8", **COMES) == "NCCL"


@pytest.mark.parametrize("nccl", [STAYS_AWAY, {}])
def test_without_nccl_there_are_no_operations(nccl: dict[str, Any]) -> None:
    assert operations(GPUS, CUDA, **nccl) == "none"
