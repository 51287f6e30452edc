"""A real API server with etcd and a controller, on the loopback interface, for the time of a ``with`` block."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Self

START_S = 600.0  # on a busy machine
NAMESPACE = "ml"
ADMIN, USER = "admin", "somebody"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


class ControlPlane:
    """The running programs, and what a client needs to know of them."""

    def __init__(self, folder: Path, programs: Mapping[str, Path]) -> None:
        """Prepare keys and tokens in a folder."""
        self.folder, self._programs = folder, programs
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.tokens = {name: secrets.token_hex(16) for name in (ADMIN, USER)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start everything, and make the namespace."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_unused: object) -> None:
        """End everything."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self) -> None:
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens = self.folder / "tokens.csv"
        tokens.write_text(
            f"{self.tokens[ADMIN]},{ADMIN},{ADMIN},system:masters\n{self.tokens[USER]},{USER},{USER}\n",
            encoding="utf-8",
        )
        tokens.chmod(0o600)
        etcd, peer = free_port(), free_port()
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            *(f"--{name}-client-urls=http://127.0.0.1:{etcd}" for name in ("listen", "advertise")),
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--cert-dir={self.folder / 'certs'}",
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}", "--authorization-mode=RBAC"),
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            *("--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount"),
            "--kubelet-preferred-address-types=InternalIP",
        )
        until = time.monotonic() + START_S
        while not self._is_ready():
            if time.monotonic() > until:
                raise TimeoutError((self.folder / "kube-apiserver.log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.3)
        config = self.kubeconfig(ADMIN)
        self._run(
            "kube-controller-manager",
            *(f"--kubeconfig={config}", "--leader-elect=false", "--port=0", "--secure-port=0"),
            "--controllers=garbagecollector",
        )
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(self._programs[name]), *arguments],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _is_ready(self) -> bool:
        try:
            return self._answer("GET", "/readyz") == b"ok"
        except OSError:
            return False

    def kubeconfig(self, user: str, **changed: str) -> Path:
        """Write a kubeconfig for one of the users; ``server``, ``token`` and ``namespace`` may be others."""
        cluster = {"server": changed.get("server", self.url), "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": changed.get("token", self.tokens[user])}}],
            "contexts": [
                {
                    "name": "lab",
                    "context": {"cluster": "here", "user": user, "namespace": changed.get("namespace", NAMESPACE)},
                }
            ],
            "current-context": "lab",
        }
        path = self.folder / f"{user}-{len(list(self.folder.iterdir()))}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        path.chmod(0o600)
        return path

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the API server as its administrator; a resource that is missing is an empty answer."""
        try:
            answer: dict[str, Any] = json.loads(self._answer(method, path, body))
        except urllib.error.HTTPError as error:
            if error.code in {404, 409}:
                return {}
            raise AssertionError(error.read().decode()) from None
        return answer

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(  # noqa: S310 - the server that this test has started
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.tokens[ADMIN]}", "Content-Type": kind},
            method=method,
        )
        trust = ssl._create_unverified_context()  # noqa: S323, SLF001 - its certificate is its own
        with urllib.request.urlopen(request, context=trust, timeout=30) as reply:  # noqa: S310 - as above
            return bytes(reply.read())

    def names(self, resource: str) -> list[str]:
        """Return what there is of a resource in the namespace: ``v1/pods``, ``kubeflow.org/v1/pytorchjobs``."""
        group, _, plural = resource.rpartition("/")
        top = "/api/v1" if group == "v1" else f"/apis/{group}"
        items = self.ask("GET", f"{top}/namespaces/{NAMESPACE}/{plural}").get("items", [])
        return [item["metadata"]["name"] for item in items if item["metadata"]["name"] != "kube-root-ca.crt"]


@contextlib.contextmanager
def started(folder: Path, programs: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """Run a control plane."""
    with ControlPlane(folder, programs) as plane:
        yield plane
