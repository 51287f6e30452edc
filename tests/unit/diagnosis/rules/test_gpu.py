"""Doctor's rules about GPUs: what jobs cannot use and why, and how nodes differ."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.findings import Finding
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host
from clusterctl.provisioning import look
from clusterctl.remote import ssh_failure
from clusterctl.support import content
from doctor_view import NODES, Change, Record, seen, told

sys.path.insert(0, str(content.collections_path()))
from ansible_collections.clusterctl.hpc.plugins.module_utils import job_user_rules


def gpus(count: int, name: str = "H100", **values: Any) -> Change:
    return lambda record: record.update(
        gpus=[{"bus": f"0{number}", "name": name, "driver": "nvidia", **values} for number in range(count)]
    )


def of_gpus(**changes: Change) -> list[Finding]:
    return [one for one in registry.diagnose(seen(**changes)) if one.check == "gpus"]


def test_gpus_are_compared_among_those_that_have_some() -> None:
    def found(**counts: Change) -> list[tuple[str, str, tuple[str, ...]]]:
        return [one for one in told(seen(**counts)) if one[0] == "gpus"]

    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(8)) == []
    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(7)) == [("gpus", "error", ("node3",))]
    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(8, "A100")) == [("gpus", "warning", ("node3",))]


@pytest.mark.parametrize(
    ("why", "problem", "severity", "cure"),
    [
        ("container", "the driver is in a container below /run/nvidia/driver", "warning", "driver.enabled=false"),
        ("device", "the device files are missing", "warning", "give the container its GPUs"),
        ("library", "no session finds libcuda.so.1", "error", "install the driver's libraries"),
        ("versions", "the kernel runs driver 580.95.05", "error", "restart the node"),
        ("mig", "MIG mode is on, and the GPU has no instance", "error", "nvidia-smi mig -cgi SIZE -C"),
    ],
)
def test_gpus_that_jobs_cannot_use_are_named_with_a_cure(why: str, problem: str, severity: str, cure: str) -> None:
    (found,) = of_gpus(node2=gpus(8, unusable=why, problem=problem))
    assert (found.hosts, found.severity) == (("node2",), severity)
    assert found.cause == f"jobs cannot use 8 GPUs (00, 01, 02, 03 and 4 more): {problem}"
    assert cure in found.cure


@pytest.mark.parametrize("driver", ["", "nouveau"])
def test_a_gpu_without_nvidia_s_driver_is_named(driver: str) -> None:
    idle = gpus(1, "", driver=driver, unusable="driver", problem="NVIDIA's driver is missing")
    (found,) = of_gpus(node4=idle)
    assert (found.hosts, found.severity) == (("node4",), "error")
    assert "jobs cannot use 1 GPU (00): NVIDIA's driver is missing" in found.cause
    assert "install NVIDIA's driver, 580 or later," in found.cure

    def without_nccl(record: Record) -> None:
        gpus(1, "", driver=driver, unusable="driver", display=True)(record)
        record["artifacts"] = [entry for entry in record["artifacts"] if entry["link"] != "/usr/local/nccl"]

    assert of_gpus(node4=without_nccl) == [], "a display's GPU in a cluster that never meant to use one"


def test_a_gpu_given_to_a_virtual_machine_is_left_alone() -> None:
    assert (
        of_gpus(
            node4=gpus(
                1, "", driver="vfio-pci", unusable="driver", problem="the driver vfio-pci is in use and not NVIDIA's"
            )
        )
        == []
    )


def test_other_mig_instances_than_on_most_nodes_are_named() -> None:
    cut = gpus(1, instances=["MIG-a", "MIG-b"])
    (found,) = of_gpus(node1=cut, node2=cut, node3=gpus(1))
    assert (found.hosts, found.severity) == (("node3",), "warning")
    assert found.cause == "MIG is off, and 2 instances on most nodes"


def test_other_instances_and_a_repaired_driver_are_a_change_for_provision() -> None:
    def words(**values: Any) -> str:
        node = seen(node1=gpus(2, **values)).nodes["node1"]
        driven = node.cuda.model_copy(update={"driver_version": "580.95.05"})
        return look.state_of(node.model_copy(update={"cuda": driven})).gpus

    assert words() == "2 with driver 580.95.05"
    assert words(instances=["MIG-a", "MIG-b"]) == "2 in 4 MIG instances with driver 580.95.05"
    assert words(unusable="library", problem="no library") == ""


def test_the_stack_counts_what_ranks_can_take() -> None:
    record = seen(node1=gpus(2, instances=["MIG-a", "MIG-b"]), node2=gpus(2, unusable="library", problem="no library"))
    cut, idle = (training_stack.of(record.nodes[name]) for name in ("node1", "node2"))
    assert (cut.gpus, cut.most_instances, cut.idle_gpus) == (4, 2, "")
    assert (idle.gpus, idle.idle_why, idle.idle_gpus) == (0, "library", "2 GPUs: no library")


# --- job user ---


def account(**given: object) -> Change:
    user = {"name": "mpi", "uid": 51620, "home": "/home/mpi", "shell": "/bin/bash", "sudo": False, **given}

    def change(record: dict[str, object]) -> None:
        record["job_user"] = user

    return change


def everywhere(**given: object) -> dict[str, Change]:
    return dict.fromkeys(NODES, account(**given))


def test_an_account_without_privileges_is_worth_no_word() -> None:
    view = seen(**everywhere())
    assert told(view) == []
    assert registry.notes(view) == ()


def test_a_job_that_can_become_root_is_told_in_one_line_for_the_whole_cluster() -> None:
    (note,) = registry.notes(seen(**everywhere(name="ubuntu", sudo=True)))
    assert note.startswith("Jobs run as user ubuntu, who may use sudo without a password: root on one node")
    assert "Set cluster_user" in note
    (note,) = registry.notes(seen(**{**everywhere(), "node2": account(sudo=True)}))
    assert "without a password on node2: " in note
    (note,) = registry.notes(seen(**everywhere(name="root", uid=0, sudo=True)))
    assert note.startswith("Jobs run as root: root on one node")


@pytest.mark.parametrize("uid", [0, 51620])
@pytest.mark.parametrize("others_too", [True, False])
def test_doctor_says_the_sentence_of_provision_about_a_way_to_root(uid: int, *, others_too: bool) -> None:
    nodes = NODES if others_too else ("node2",)
    view = seen(**{**everywhere(uid=uid), **dict.fromkeys(nodes, account(uid=uid, sudo=True))})
    reaching = dict.fromkeys(nodes, "sudo" if uid else "root")
    assert registry.notes(view) == (job_user_rules.root_reach("mpi", reaching, len(NODES)),)


def test_sudo_that_does_not_answer_is_no_claim() -> None:
    assert registry.notes(seen(**everywhere(sudo=None))) == ()


def test_different_uids_are_a_note() -> None:
    (note,) = registry.notes(seen(**{**everywhere(), "node4": account(uid=1001)}))
    assert "uid of user mpi differs: 1001 on node4, 51620 on node[1-3]" in note


def test_a_provisioned_node_without_the_account_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(uid=-1)})
    assert told(view) == [("job_user", "error", ("node3",))]
    (found,) = registry.diagnose(view)
    assert "user mpi" in found.cause
    assert "provision" in found.cure


def test_an_account_without_its_home_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(has_home=False)})
    (found,) = registry.diagnose(view)
    assert (found.hosts, found.severity) == (("node3",), "error")
    assert found.cause == "the home /home/mpi of user mpi is missing"
    assert "su - mpi -c true" in found.cure


def test_an_account_whose_home_hangs_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(has_home=False, home_answers=False)})
    (found,) = registry.diagnose(view)
    assert (found.hosts, found.severity) == (("node3",), "error")
    assert found.cause == "the home /home/mpi of user mpi is on a file system that does not answer"


def test_a_node_that_refuses_the_account_is_named_with_the_way_to_its_keys() -> None:
    host = Host("node2", "10.0.0.2", user="mpi", variables={"cluster_user": "mpi"})
    failure = ssh_failure.classify(host, 255, "mpi@10.0.0.2: Permission denied (publickey).\n")
    view = dataclasses.replace(seen(**everywhere()), closed_to_jobs={"node2": failure})
    assert told(view) == [("job_user", "error", ("node2",))]
    (found,) = registry.diagnose(view)
    assert "refuses the login of user mpi" in found.cause
    assert "cluster_user_keys" in found.cure


@pytest.mark.parametrize(("model", "cured"), [("NVIDIA GB10", False), ("NVIDIA H100 80GB HBM3", True)])
def test_a_gpu_that_has_no_gpudirect_lacks_no_module_for_it(model: str, cured: bool) -> None:
    readings = (
        HardwareReading("rdma card", "0000:01:00.0", "PCIe lanes", 16),
        HardwareReading("gpu", "000f:01:00.0", "model", model),
        HardwareReading("node", "", "GPUDirect", "none"),
    )
    look = Hardware(schema_version=1, time=0.0, readings=readings)
    found = registry.diagnose(View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(look)}))
    assert [one.check for one in found] == ["gpudirect"] * cured
