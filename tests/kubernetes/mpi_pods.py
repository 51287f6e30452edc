"""Stands in for mpi-operator and two kubelets: the pods of an MPIJob are containers of an image with Open MPI and sshd.

What the operator gives to its pods is that of its sources (kubeflow/mpi-operator, v2beta1): a key of ssh for root, a
host file at /etc/mpi/hostfile, sshd as the program of workers, names below the job's service, and variables of Open MPI
for the launcher. Names resolve by /etc/hosts in place of the cluster's name service.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.sandbox import images
from clusterctl.sandbox.container_engine import Podman
from clusterctl.support.errors import ClusterctlError
from control_plane import NAMESPACE, ControlPlane
from nodes import NODES, Nodes
from typing_extensions import Self

# What the documentation of mpi-operator asks of an image, with the distribution's own Open MPI, mpi4py and numpy.
RECIPE = r"""
FROM {base}
RUN apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
        openmpi-bin openssh-client openssh-server python3-mpi4py python3-numpy >/dev/null && rm -rf /var/lib/apt/lists
RUN ssh-keygen -A && mkdir -p /run/sshd && rm -rf /root/.ssh && mkdir -m 700 /root/.ssh
RUN printf 'Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' >/etc/ssh/ssh_config
RUN printf 'StrictModes no\nPermitRootLogin prohibit-password\nUsePAM no\n' >/etc/ssh/sshd_config
ENTRYPOINT []
"""
LAUNCHER = "-launcher-x7k2p"  # a pod of a batch job has a name with a random end
SSHD = ["/usr/sbin/sshd", "-De"]


def image(engine: Podman) -> str:
    """Return an image with Open MPI, built first where it is not there yet.

    Raises:
        ClusterctlError: it cannot be had here.
    """
    base = images.ensure(engine, "debian12", lambda _words: None)
    text = RECIPE.format(base=base)
    reference = f"localhost/clusterctl-test-mpi:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not engine.succeeds("image", "exists", reference):
        engine.run("build", "--network", "host", "--tag", reference, "--file", "-", stdin=text.encode())
    return reference


class MpiPods(Nodes):
    """The operator of MPIJobs, with containers as pods."""

    jobs = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"

    def __init__(self, plane: ControlPlane, folder: Path, engine: Podman, reference: str) -> None:
        """Prepare the nodes; ``first`` are scripts that run before sshd of the workers whose names end so."""
        super().__init__(plane, folder)
        self._engine, self._image = engine, reference
        self._name = f"clusterctl-mpijob-{os.getpid()}"
        self._subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._addresses: dict[str, tuple[str, str]] = {}  # by pod: its address and its name below the service
        self.first: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Make the network of the pods, and begin to work."""
        self._engine.run("network", "create", "--subnet", f"{self._subnet}.0/24", self._name)
        return super().__enter__()

    def __exit__(self, *details: object) -> None:
        """End all pods, and take their network away."""
        try:
            super().__exit__(*details)
        finally:
            self._engine.run("network", "rm", "--force", self._name)

    def logs(self, end: str) -> list[str]:
        """Return what the pods have printed whose names end so."""
        return [(self._folder / f"{name}.log").read_text("utf-8") for name in self._processes if name.endswith(end)]

    def _called(self, name: str) -> str:
        return f"{self._name}-{name}"

    def _end(self, name: str) -> None:
        with contextlib.suppress(ClusterctlError):  # it has ended by itself
            self._engine.run("rm", "--force", "--time", "0", self._called(name))
        super()._end(name)

    def _operate(self, job: Mapping[str, Any], pods: Mapping[str, Any]) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        if job.get("status", {}).get("conditions") or "deletionTimestamp" in job["metadata"]:
            return
        workers = [f"{name}-worker-{number}" for number in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])]
        if self.makes_pods and not set(pods) & {*workers, name + LAUNCHER}:
            service = f"{name}.{NAMESPACE}.svc"
            names = [*workers, name + LAUNCHER]
            self._addresses = {
                pod: (f"{self._subnet}.{number}", f"{pod}.{service}") for number, pod in enumerate(names, start=10)
            }
            self._secrets(name, workers, spec["slotsPerWorker"])
            for number, pod in enumerate(names):
                kind = "Worker" if pod in workers else "Launcher"
                template = spec["mpiReplicaSpecs"][kind]["template"]
                (container,) = template["spec"]["containers"]
                given = {"K_MPI_JOB_ROLE": kind.lower()}
                given |= _of_launcher(spec["slotsPerWorker"]) if kind == "Launcher" else {}
                whole = {
                    **container,
                    "command": container.get("command") or SSHD,
                    "env": [*container.get("env", []), *({"name": k, "value": v} for k, v in given.items())],
                }
                self._create(job, template, pod, whole, NODES[number % len(NODES)])
        self._conclude(name, [name + LAUNCHER], pods)  # sshd of the workers never ends

    def _secrets(self, job: str, workers: list[str], slots: int) -> None:
        """Write what the operator mounts: a key for all pods, and the host file for the launcher."""
        keys, own = self._folder / f"{job}-ssh", self._folder / f"{job}-config"
        for folder in (keys, own):
            folder.mkdir(mode=0o755)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", str(keys / "id_rsa")],
            check=True,
        )
        (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
        text = "".join(f"{self._addresses[worker][1]} slots={slots}\n" for worker in workers)
        (own / "hostfile").write_text(text, encoding="utf-8")

    def _start(self, pod: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        own = self._volume(pod)
        if own is None:
            return
        (container,) = pod["spec"]["containers"]
        job = name.removesuffix(LAUNCHER).partition("-worker-")[0]
        place = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "clusterctl")
        words = ["--rm", "--name", self._called(name), "--hostname", name.removesuffix("-x7k2p"), "--shm-size", "256m"]
        words += ["--network", f"{self._name}:ip={self._addresses[name][0]}"]
        words += [f"--add-host={full}:{address}" for address, full in self._addresses.values()]
        words += [f"--volume={own}:{place}:ro", f"--volume={self._folder / f'{job}-ssh'}:/root/.ssh:ro"]
        if name.endswith(LAUNCHER):
            words += [f"--volume={self._folder / f'{job}-config'}:/etc/mpi:ro"]
        words += [f"--env={entry['name']}={entry.get('value', '')}" for entry in container["env"]]
        command = container["command"]
        for end, script in self.first.items():
            command = ["sh", "-c", f'{script}; exec "$@"', "sh", *command] if name.endswith(end) else command
        self._run(name, self._engine.argv("run", *words, self._image, *command), dict(os.environ))


def _of_launcher(slots: int) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
