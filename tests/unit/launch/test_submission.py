"""Submissions: held against the published schemas, read back as their scheduler would, and never made of strings."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from clusterctl.launch import submission_text
from clusterctl.launch.nccl_options import NcclOptions
from clusterctl.launch.submission import Submission
from clusterctl.support.errors import ConfigError
from kubeflow_schemas import MPIJOB, PYTORCHJOB

NASTY = ("python", "train.py", "--title", 'it\'s "$HOME" & `ls`; $(id)', "--deep", "$$(NAME)", "a: b # c", "", "é\n- x")


JOB = Submission(
    name="bert-large",
    program=NASTY,
    image="registry.example:5000/team/train:1.2@sha256:" + 64 * "a",
    nodes=4,
    gpus_per_node=8,
    nproc_per_node=8,
    environment={"NCCL_DEBUG": "INFO", "TITLE": "yes: no # 'x'"},
    rdma={"rdma/hca_shared_devices_a": 1, "nvidia.com/roce-b": 2},
    networks=("default/roce-a", "roce-b@net2"),
    annotations={"sidecar.istio.io/inject": "false"},
    cpus="64",
    memory="512Gi",
    working_dir="/srv/my job",
)


KUBEFLOW = {"namespace": "training", "shm_size": "64Gi"}


SMALL = Submission(name="a", program=("train.py",), image="train")


def changed(job: Submission = JOB, **values: Any) -> Submission:
    return Submission(**{**vars(job), **values})


def containers(document: Any) -> dict[str, Any]:
    replicas = next(value for name, value in document["spec"].items() if name.endswith("ReplicaSpecs"))
    return {kind: replica["template"]["spec"]["containers"][0] for kind, replica in replicas.items()}


def as_kubernetes_expands(word: str) -> str:
    """Return what the kubelet makes of a word where no variable of that name is set: two dollars are one."""
    return word.replace("$$", "$")


def in_pod(line: list[str]) -> tuple[str, ...]:
    assert line[:2] == ["clusterctl", "launch"]
    return tuple(line[line.index("--") + 1 :])


@pytest.mark.parametrize("job", [changed(**KUBEFLOW), SMALL, changed(SMALL, nodes=2)], ids=["full", "small", "two"])
def test_a_pytorchjob_is_what_the_operator_takes(job: Submission) -> None:
    document = yaml.safe_load(submission_text.pytorchjob(job))
    PYTORCHJOB.validate(document)
    assert (document["apiVersion"], document["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = {kind: it["replicas"] for kind, it in document["spec"]["pytorchReplicaSpecs"].items()}
    assert sum(replicas.values()) == job.nodes
    assert replicas["Master"] == 1
    for container in containers(document).values():
        assert container["name"] == "pytorch"  # the operator writes its variables into that one alone
        assert in_pod([as_kubernetes_expands(word) for word in container["command"]]) == job.program


@pytest.mark.parametrize(
    "job",
    [
        changed(**KUBEFLOW),
        changed(SMALL, nproc_per_node=2),
        changed(**KUBEFLOW, by_torchrun=True),
        changed(SMALL, nodes=2, by_torchrun=True),
    ],
    ids=["full", "small", "torchrun", "torchrun-small"],
)
def test_an_mpijob_is_what_the_operator_takes(job: Submission) -> None:
    document = yaml.safe_load(submission_text.mpijob(job))
    MPIJOB.validate(document)
    assert (document["apiVersion"], document["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert document["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == job.nodes
    found = containers(document)
    assert "command" not in found["Worker"]  # the operator starts sshd there
    line = [as_kubernetes_expands(word) for word in found["Launcher"]["command"]]
    ranks = job.nodes if job.by_torchrun else job.nodes * int(job.nproc_per_node or 0)
    assert line[:3] == ["mpirun", "-np", str(ranks)]
    assert document["spec"]["slotsPerWorker"] * job.nodes == ranks
    assert tuple(line[-len(job.program) :]) == job.program
    variables = {it["name"]: it["value"] for it in found["Launcher"]["env"]}
    assert variables.items() >= job.environment.items()
    handed_on = [line[number + 1] for number, word in enumerate(line) if word == "-x"]
    assert set(handed_on) >= set(job.environment)
    if job.by_torchrun:
        assert variables["MASTER_ADDR"] == f"{job.name}-worker-0.{job.name}"
        assert {"MASTER_ADDR", "MASTER_PORT"} <= set(handed_on)


def test_pods_with_rdma_get_the_devices_the_networks_and_leave_to_lock_memory() -> None:
    document = yaml.safe_load(submission_text.pytorchjob(changed(**KUBEFLOW)))
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        template = replica["template"]
        assert template["metadata"]["annotations"] == {
            "k8s.v1.cni.cncf.io/networks": "default/roce-a,roce-b@net2",
            "sidecar.istio.io/inject": "false",
        }
        container = template["spec"]["containers"][0]
        assert container["resources"]["limits"] == {
            "nvidia.com/gpu": 8,
            "rdma/hca_shared_devices_a": 1,
            "nvidia.com/roce-b": 2,
            "cpu": "64",
            "memory": "512Gi",
        }
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert container["volumeMounts"] == [{"name": "dshm", "mountPath": "/dev/shm"}]  # noqa: S108 - a mount point
        assert template["spec"]["volumes"] == [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]
    assert "securityContext" not in submission_text.pytorchjob(SMALL)
    launcher = containers(yaml.safe_load(submission_text.mpijob(changed(**KUBEFLOW))))["Launcher"]
    assert "resources" not in launcher


@pytest.mark.parametrize("name", ["1.5", "true", "null", "2026-11-21", "0x10", "yes"])
def test_words_that_yaml_takes_for_something_else_stay_words(name: str) -> None:
    job = changed(SMALL, program=("run", name), environment={"VALUE": name})
    container = containers(yaml.safe_load(submission_text.pytorchjob(job)))["Master"]
    assert container["command"][-1] == name
    assert container["env"] == [{"name": "VALUE", "value": name}]
    PYTORCHJOB.validate(yaml.safe_load(submission_text.pytorchjob(job)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "pytorchReplicaSpecs", "Master", "replica"), 1),
        (("spec", "pytorchReplicaSpecs", "Master", "replicas"), "1"),
        (("spec", "pytorchReplicaSpecs", "Master", "template", "spec", "container"), []),
        (("spec", "pytorchReplicaSpecs", "Master", "template", "metadata", "annotations"), {"a": False}),
        (("spec", "nprocPerNode"), 8),
        (("spec", "slotsPerWorker"), 8),
    ],
)
def test_the_schema_refuses_what_the_operator_would(path: tuple[str, ...], value: object) -> None:
    document = yaml.safe_load(submission_text.pytorchjob(changed(SMALL, annotations={"a": "b"})))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        PYTORCHJOB.validate(document)


def test_the_schema_of_a_container_is_kubernetes_own() -> None:
    document = yaml.safe_load(submission_text.mpijob(changed(SMALL, nproc_per_node=1)))
    containers(document)["Launcher"]["command"] = "mpirun"
    with pytest.raises(jsonschema.ValidationError, match="is not of type 'array'"):
        MPIJOB.validate(document)


def test_runai_gets_one_line_that_a_shell_takes_apart_again() -> None:
    text = submission_text.runai(changed(project="team-a"))
    words = shlex.split(text)
    before, _, after = " ".join(words[:-1]).partition(" --command -- ")
    assert before.startswith("runai training pytorch submit bert-large --project team-a --image registry.example:5000/")
    assert "--workers 3 --gpu-devices-request 8 --master-gpu-devices-request 8" in before
    assert (
        "--extended-resource rdma/hca_shared_devices_a=1 --master-extended-resource rdma/hca_shared_devices_a=1"
        in before
    )
    assert "--annotation k8s.v1.cni.cncf.io/networks=default/roce-a,roce-b@net2" in before
    assert "--capability IPC_LOCK" in before
    assert "-e NCCL_DEBUG=INFO" in before
    assert before.endswith("--large-shm")
    assert after.startswith("clusterctl launch --nproc-per-node=8 -- python train.py")
    line = words[words.index("--command") + 2 :]
    assert in_pod([as_kubernetes_expands(word) for word in line]) == NASTY
    assert "--workers" not in submission_text.runai(SMALL)


def test_the_older_client_of_runai_has_words_of_its_own() -> None:
    """The flags are those of 'runai submit-dist pytorch', which gives the master what a worker gets."""
    text = submission_text.KINDS["runai-submit-dist"](changed(project="team-a"))
    words = shlex.split(text)
    before, _, after = " ".join(words[:-1]).partition(" --command -- ")
    assert before.startswith(
        "runai submit-dist pytorch --name bert-large --project team-a --image registry.example:5000/"
    )
    assert "--workers 3 --gpu 8 --extended-resource rdma/hca_shared_devices_a=1" in before
    assert "--master" not in before
    assert "--add-capability IPC_LOCK --cpu 64 --memory 512Gi --working-dir" in before
    assert before.endswith("--large-shm")
    assert after.startswith("clusterctl launch --nproc-per-node=8 -- python train.py")
    with pytest.raises(ConfigError, match="--namespace does not apply to submit-dist"):
        submission_text.KINDS["runai-submit-dist"](changed(SMALL, namespace="a"))


TUNED = NcclOptions(gid_index="auto", socket_threads=4, sockets_per_thread=8)


def commands(text: str) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command and the variables of each container of a manifest."""
    found = []
    replicas = next(value for name, value in yaml.safe_load(text)["spec"].items() if name.endswith("ReplicaSpecs"))
    for replica in replicas.values():
        (container,) = replica["template"]["spec"]["containers"]
        variables = {entry["name"]: entry["value"] for entry in container.get("env", [])}
        found.append((container.get("command", []), variables))
    return found


def test_options_of_nccl_go_to_launch_in_each_pod() -> None:
    job = changed(SMALL, nodes=2, nccl=TUNED)
    line = [
        "clusterctl",
        "launch",
        "--gid-index=auto",
        "--socket-threads=4",
        "--sockets-per-thread=8",
        "--",
        "train.py",
    ]
    for kind in ("runai", "runai-submit-dist"):
        assert submission_text.KINDS[kind](job).endswith(" --command -- " + shlex.join(line))
    assert [command for command, _ in commands(submission_text.pytorchjob(job))] == [line, line]
    assert submission_text.slurm(changed(job, image="")).rstrip().endswith(shlex.join(line))
    launcher = commands(submission_text.mpijob(changed(job, by_torchrun=True)))[0]
    assert launcher[0][-len(line) :] == line


def test_an_mpijobs_ranks_get_the_options_as_variables() -> None:
    job = changed(SMALL, nodes=2, nproc_per_node=2, nccl=NcclOptions("3", 4, 8))
    command, variables = commands(submission_text.mpijob(job))[0]
    for name, value in (("NCCL_IB_GID_INDEX", "3"), ("NCCL_SOCKET_NTHREADS", "4"), ("NCCL_NSOCKS_PERTHREAD", "8")):
        assert variables[name] == value
        assert command[command.index(name) - 1] == "-x"
    with pytest.raises(ConfigError, match="--gid-index auto needs 'clusterctl launch' in each pod"):
        submission_text.mpijob(changed(job, nccl=TUNED))


def test_an_idle_pod_sleeps_and_has_its_variables() -> None:
    idle = changed(SMALL, program=("sleep", "infinity"), nodes=2, gpus_per_node=8, nccl=NcclOptions("3", 4))
    variables = {"NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_NTHREADS": "4"}
    assert commands(submission_text.pytorchjob(idle)) == [(["sleep", "infinity"], variables)] * 2
    for kind in ("runai", "runai-submit-dist"):
        line = submission_text.KINDS[kind](idle)
        assert line.endswith("-e NCCL_IB_GID_INDEX=3 -e NCCL_SOCKET_NTHREADS=4 --large-shm --command -- sleep infinity")
    assert commands(submission_text.mpijob(idle))[0][0] == ["sleep", "infinity"]
    assert submission_text.slurm(changed(idle, image="")).rstrip().endswith("--kill-on-bad-exit=1 sleep infinity")
    PYTORCHJOB.validate(yaml.safe_load(submission_text.pytorchjob(idle)))


SLURM = changed(
    image="",
    rdma={},
    networks=(),
    annotations={},
    memory="512G",
    working_dir="",
    partition="gpu",
    account="lab",
    time="2-00",
)


def test_a_slurm_script_gives_its_step_the_very_words(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(submission_text.slurm(SLURM), encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False).stderr == ""
    asked = [line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        *("--job-name=bert-large", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=64"),
        *("--mem=512G", "--time=2-00", "--partition=gpu", "--account=lab"),
    ]
    step = [sys.executable, "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['TITLE']]))"]
    (tmp_path / "srun").write_text("#!/bin/sh\n" + f'exec {shlex.join(step)} "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    done = subprocess.run(
        ["bash", str(script)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    words, title = json.loads(done.stdout)
    assert title == JOB.environment["TITLE"]
    assert words[:3] == ["--nodes=4", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    assert in_pod(words[words.index("clusterctl") :]) == NASTY


def test_a_slurm_script_ends_as_its_step_does(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 13\n")
    (tmp_path / "srun").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", submission_text.slurm(SLURM)], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False
    )
    assert done.returncode == 13


def test_an_image_for_slurm_is_asked_for_as_pyxis_does() -> None:
    text = submission_text.slurm(changed(SLURM, image="team/train:1", working_dir="/w"))
    assert "--container-image=team/train:1 --container-workdir=/w clusterctl launch" in text
    assert "--chdir=/w clusterctl launch" in submission_text.slurm(changed(SLURM, working_dir="/w"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": ""}, "'' is not a valid name for a job"),
        ({"name": "Bert"}, "'Bert' is not a valid name for a job; .*RFC 1123"),
        ({"name": "bert_large"}, "is not a valid name for a job"),
        ({"name": "bert-"}, "is not a valid name for a job"),
        ({"name": "4bert"}, "begins with a letter"),
        ({"name": "a" * 55}, "has 54 characters at most"),
        ({"name": "a\n"}, "is not a valid name for a job"),
        ({"program": ()}, "There is no program to start"),
        ({"image": ""}, "pytorchjob needs a container image"),
        ({"image": "a b"}, "'a b' is not a valid image"),
        ({"image": "--privileged"}, "'--privileged' is not a valid image"),
        ({"nodes": 0}, "one node and one process at least"),
        ({"environment": {"A-B": "1"}}, "'A-B' is not a valid environment variable"),
        ({"environment": {"RANK": "1"}}, "WORLD_SIZE and RANK are the scheduler's to set"),
        ({"environment": {"A": "x\ny"}}, "The value of A has a control character"),
        ({"rdma": {"hca": 1}}, "'hca' is not a valid extended resource; give a name such as rdma/"),
        ({"rdma": {"rdma/hca": 0}}, "0 is not a valid number of rdma/hca; give 1 or more"),
        ({"networks": ("a b",)}, "'a b' is not a valid network attachment"),
        ({"annotations": {"a b": "c"}}, "'a b' is not a valid annotation's name"),
        ({"memory": "64 GB"}, "'64 GB' is not a valid amount of memory"),
        ({"working_dir": "rel"}, "'rel' is not a valid working directory"),
        ({"namespace": "A"}, "'A' is not a valid namespace"),
        ({"partition": "gpu"}, "--partition does not apply to pytorchjob"),
        ({"by_torchrun": True}, "--launcher torchrun does not apply to pytorchjob"),
        ({"nccl": NcclOptions("x")}, "--gid-index 'x' is not an entry of a GID table; give 0 to 255, or auto"),
        ({"nccl": NcclOptions("256")}, "--gid-index '256' is not an entry"),
        ({"nccl": NcclOptions("", 17)}, "--socket-threads 17 is outside of NCCL's limits; give 1 to 16"),
        ({"nccl": NcclOptions("", 16, 5)}, "their product is 64 at most"),
        ({"nccl": NcclOptions("", 0, 65)}, "their product is 64 at most"),
        (
            {"nccl": NcclOptions("3"), "environment": {"NCCL_IB_GID_INDEX": "3"}},
            "NCCL_IB_GID_INDEX is given by -x and by an option",
        ),
        ({"nccl": NcclOptions("auto"), "program": ("sleep", "infinity")}, "--gid-index auto needs 'clusterctl launch'"),
    ],
)
def test_what_is_malformed_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        submission_text.pytorchjob(changed(SMALL, **values))


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("slurm", {"rdma": {"rdma/a": 1}}, "--rdma-resource does not apply to slurm"),
        ("slurm", {"memory": "64Gi"}, "is not a valid amount of memory for Slurm; write it as 64G"),
        ("slurm", {"cpus": "0.5"}, "'0.5' is not a valid number of CPUs"),
        ("slurm", {"time": "tomorrow"}, "'tomorrow' is not a valid time"),
        ("slurm", {"partition": "a b"}, "'a b' is not a valid partition"),
        ("runai", {"shm_size": "1Gi"}, "--shm-size does not apply to runai"),
        ("mpijob", {}, "An MPIJob needs to know its ranks"),
    ],
)
def test_what_means_nothing_to_a_scheduler_is_refused(kind: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        submission_text.KINDS[kind](changed(SMALL, **values))


# --- srun starts the ranks of an MPI program ---

BY_SRUN = changed(SLURM, by_srun=True, nproc_per_node=2, gpus_per_node=0, nodes=2, image="")


def in_a_job(tmp_path: Path, sizes: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a stand-in for srun, whose C program prints a line for each of the sizes."""
    srun = tmp_path / "srun"
    proof = "".join(f'echo \'{{"rank": 0, "size": {size}, "host": "n"}}\'\n' for size in sizes.split())
    srun.write_text(f'#!/bin/bash\ncase "$*" in *clusterctl-hello) {proof or ":"};; *) echo "$@";; esac\n')
    srun.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", submission_text.slurm(BY_SRUN)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_srun_starts_the_ranks_where_they_are_one_world(tmp_path: Path) -> None:
    text = submission_text.slurm(BY_SRUN)
    assert "#SBATCH --ntasks-per-node=2" in text
    assert "export SLURM_PMIX_FENCE=ring\n" in text
    assert "export SLURM_PMIX_FENCE=tree\n" in submission_text.slurm(
        changed(BY_SRUN, environment={"SLURM_PMIX_FENCE": "tree"})
    )
    assert "clusterctl launch" not in text
    done = in_a_job(tmp_path, "4 4 4 4")
    assert done.returncode == 0, done.stderr
    assert "--nodes=2 --ntasks-per-node=2 --kill-on-bad-exit=1 --mpi=pmix" in done.stdout


@pytest.mark.parametrize("sizes", ["1 1 1 1", "4 4", ""])
def test_ranks_that_are_worlds_of_their_own_end_the_script(tmp_path: Path, sizes: str) -> None:
    done = in_a_job(tmp_path, sizes)
    assert (done.returncode, done.stdout) == (11, "")
    assert "srun --mpi=pmix does not start one world of 4 ranks" in done.stderr
    assert "clusterctl doctor" in done.stderr


def test_srun_needs_to_know_the_ranks_and_is_slurm_s_alone() -> None:
    with pytest.raises(ConfigError, match="give --nproc-per-node"):
        submission_text.slurm(changed(BY_SRUN, nproc_per_node=None))
    with pytest.raises(ConfigError, match="--launcher srun does not apply to mpijob"):
        submission_text.mpijob(changed(BY_SRUN, image="i", partition="", account="", time=""))
    with pytest.raises(ConfigError, match="--image does not apply to slurm"):
        submission_text.slurm(changed(BY_SRUN, image="i"))
