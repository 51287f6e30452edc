"""Stands in for training-operator and two kubelets: makes a PyTorchJob's pods, runs their programs, serves their logs.

A pod is a process in namespaces of its own for host names and mounts, with the ConfigMap where its container mounts it.
There is no image: the machine's own files stand in for it.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import shlex
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from control_plane import NAMESPACE, ControlPlane, free_port
from typing_extensions import Self

NODES = ("node-a", "node-b")
JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LOOK_S = 0.3
_END = {"Succeeded": "JobSucceeded", "Failed": "JobFailed"}


class Nodes:
    """The operator, the nodes and their log server."""

    jobs = JOBS  # the jobs that the operator makes pods for

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        """Prepare the nodes; ``makes_pods`` False is an operator that is not there."""
        self._plane, self._folder = plane, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._port = free_port()
        self.makes_pods = True
        self.waiting: dict[str, str] = {}  # instead of a start, what every container waits for

    def __enter__(self) -> Self:
        """Register the nodes, and begin to work."""
        key, certificate = self._folder / "kubelet.key", self._folder / "kubelet.crt"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=node", "-days", "2"]
        subprocess.run([*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        folder, stop = self._folder, self._stop

        class Logs(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                path = folder / f"{parts.path.split('/')[3]}.log"
                self.send_response(200)
                self.end_headers()
                with path.open("rb") as file, contextlib.suppress(OSError):
                    while not stop.is_set():
                        data = file.read()
                        self.wfile.write(data)
                        self.wfile.flush()
                        ended = path.with_suffix(".ended").exists()
                        if not data and (ended or "follow" not in parse_qs(parts.query)):
                            return
                        time.sleep(0 if data else 0.1)

            def log_message(self, *_unused: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), Logs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        for name in NODES:
            self._plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            self._plane.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        """End all pods."""
        self._stop.set()
        self._worker.join()
        self._server.shutdown()
        for name in self._processes:
            self._end(name)

    def kill(self, end: str) -> None:
        """Kill the program of a pod whose name ends so."""
        for name in self._processes:
            if name.endswith(end):
                self._end(name)

    def _end(self, name: str) -> None:
        """Kill the program of a pod."""
        _kill(self._processes[name])

    @property
    def running(self) -> list[str]:
        """The pods whose programs run."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _work(self) -> None:
        while not self._stop.wait(LOOK_S):
            jobs = self._plane.ask("GET", self.jobs).get("items", [])
            pods = {pod["metadata"]["name"]: pod for pod in self._plane.ask("GET", PODS).get("items", [])}
            for job in jobs:
                self._operate(job, pods)
            for pod in pods.values():
                self._tend(pod)

    def _operate(self, job: Mapping[str, Any], pods: Mapping[str, Any]) -> None:
        """Do what the operator does: make the pods, and end the job with its master."""
        name = job["metadata"]["name"]
        kinds = job["spec"]["pytorchReplicaSpecs"]
        wanted = [
            (kind, number) for kind in ("Master", "Worker") for number in range(kinds.get(kind, {}).get("replicas", 0))
        ]
        if job.get("status", {}).get("conditions") or "deletionTimestamp" in job["metadata"]:
            return
        names = [f"{name}-{kind.lower()}-{number}" for kind, number in wanted]
        if self.makes_pods and not set(names) & set(pods):
            port = str(free_port())
            for rank, (kind, _) in enumerate(wanted):
                self._make(job, kinds[kind]["template"], names[rank], rank, len(wanted), port)
        self._conclude(name, names, pods)

    def _conclude(self, name: str, names: Sequence[str], pods: Mapping[str, Any]) -> None:
        """End a job with its first pod, or with one that failed."""
        phases = [pods.get(pod, {}).get("status", {}).get("phase") for pod in names]
        end = "Failed" if "Failed" in phases else phases[0] if phases else None
        if end in _END:
            died = [pod for pod, phase in zip(names, phases, strict=True) if phase == "Failed"]
            condition = {"type": end, "status": "True", "reason": _END[str(end)], "message": " ".join(died)}
            self._plane.ask("PATCH", f"{self.jobs}/{name}/status", {"status": {"conditions": [condition]}})

    def _make(
        self, job: Mapping[str, Any], template: Mapping[str, Any], name: str, rank: int, size: int, port: str
    ) -> None:
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "RANK": str(rank)}
        (container,) = template["spec"]["containers"]
        variables = [*container.get("env", []), *({"name": key, "value": value} for key, value in given.items())]
        self._create(job, template, name, {**container, "env": variables}, NODES[rank % len(NODES)])

    def _create(
        self, job: Mapping[str, Any], template: Mapping[str, Any], name: str, container: Mapping[str, Any], node: str
    ) -> None:
        """Create a pod that belongs to a job."""
        owner = {
            **{key: job[key] for key in ("apiVersion", "kind")},
            **{key: job["metadata"][key] for key in ("name", "uid")},
        }
        spec = {**template["spec"], "containers": [container], "nodeName": node, "restartPolicy": "Never"}
        metadata = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        self._plane.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def _tend(self, pod: Mapping[str, Any]) -> None:
        """Do what a kubelet does: start the program, tell its state, and end it with the pod."""
        name = pod["metadata"]["name"]
        process = self._processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if process is not None:
                self._end(name)
            (self._folder / f"{name}.ended").touch()
            self._plane.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            return
        if self.waiting:
            self._tell(name, "Pending", {"waiting": self.waiting})
        elif process is None:
            self._start(pod)
        elif (code := process.poll()) is not None and pod["status"]["phase"] == "Running":
            (self._folder / f"{name}.ended").touch()
            reason = {"reason": "Completed" if code == 0 else "Error", "exitCode": code if code >= 0 else 128 - code}
            self._tell(name, "Succeeded" if code == 0 else "Failed", {"terminated": reason})

    def _start(self, pod: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        place = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "clusterctl")
        own = self._volume(pod)
        if own is None:
            return
        top = next(parent for parent in Path(place).parents if parent.is_dir())
        script = (
            f"hostname {shlex.quote(name)} && mount -t tmpfs none {top} && mkdir -p {place} && "
            f'mount --bind {shlex.quote(str(own))} {place} && exec "$@"'
        )
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        self._run(
            name,
            ["unshare", "--uts", "--mount", "sh", "-c", script, "pod", *container["command"]],
            {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "GLOO_SOCKET_IFNAME": "lo", **variables},
        )

    def _volume(self, pod: Mapping[str, Any]) -> Path | None:
        """Return a folder with the programs of the ConfigMap, None while there is none: a kubelet waits for it."""
        volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "clusterctl")
        programs = self._plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{volume['configMap']['name']}")
        if not programs:
            return None
        own = self._folder / "volumes" / pod["metadata"]["name"]
        own.mkdir(parents=True)
        for file, text in programs["data"].items():
            (own / file).write_text(text, encoding="utf-8")
        return own

    def _run(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program of a pod, with its output in the pod's log."""
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._tell(name, "Running", {"running": {}})

    def _tell(self, name: str, phase: str, state: Mapping[str, Any]) -> None:
        container = {
            "name": "pytorch",
            "image": "a",
            "imageID": "",
            "restartCount": 0,
            "ready": phase == "Running",
            "state": state,
        }
        status = {"phase": phase, "containerStatuses": [container]}
        self._plane.ask("PATCH", f"{PODS}/{name}/status", {"status": status})


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
