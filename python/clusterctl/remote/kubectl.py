"""Ask a Kubernetes cluster through kubectl, which brings contexts and the plugins for credentials.

Each call is an argv list; a manifest goes through stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.remote import kubectl_output, python
from clusterctl.support import node_json
from clusterctl.support.errors import ConfigError, ValidationCouldNotRunError

_ANSWER_S = 60.0
_REQUEST = "--request-timeout=20s"
_USUAL = Path(".kube") / "config"


class Kubectl:
    """The commands of kubectl for one cluster and namespace.

    Each raises a ClusterctlError where the API server does not answer or refuses.
    """

    def __init__(self, kubeconfig: str = "", context: str = "", namespace: str = "") -> None:
        """Take the options as the command line has them; the context's own namespace where none is named."""
        self._options = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--context", context] if context else []),
        ]
        self._kubeconfig, self._asked_namespace = kubeconfig, namespace
        self.context, self.namespace = context, namespace

    @property
    def cannot_submit(self) -> str:
        """Why nothing can be submitted from this machine, as a clause; empty where it can be tried."""
        if shutil.which("kubectl") is None:
            return "this machine has no kubectl"
        if self._kubeconfig or "KUBERNETES_SERVICE_HOST" in os.environ:
            return ""
        named = [Path(word) for word in os.environ.get("KUBECONFIG", "").split(os.pathsep) if word]
        if named:
            return "" if any(path.exists() for path in named) else f"KUBECONFIG names {named[0]}, which does not exist"
        return "" if (Path.home() / _USUAL).exists() else f"there is no kubeconfig (~/{_USUAL})"

    def resolve(self) -> None:
        """Read context and namespace from the kubeconfig; no cluster is asked.

        Raises:
            ConfigError: the kubeconfig is missing or broken, or has no such context.
        """
        if self._kubeconfig and not Path(self._kubeconfig).is_file():
            raise ConfigError(f"There is no kubeconfig {self._kubeconfig}; give the path of one with --kubeconfig.")
        if not self._options and "KUBERNETES_SERVICE_HOST" in os.environ:  # inside a pod
            self.namespace = self.namespace or "default"
            return
        shown = self._json(["config", "view", "--minify", "--output=json"], is_local=True)
        self.context = str(shown.get("current-context") or self.context)
        entries = [entry for entry in shown.get("contexts") or [] if entry.get("name") == self.context]
        found = (entries[0].get("context") or {}) if entries else {}
        if not found.get("cluster"):
            raise ConfigError(
                f"The kubeconfig has no context '{self.context}' with a cluster; name one of 'kubectl config "
                "get-contexts' with --context."
            )
        self.namespace = self._asked_namespace or str(found.get("namespace") or "default")

    def may(self, verb: str, resource: str) -> bool:
        """Tell whether this user has a right in the namespace; a subresource is written as ``pods/log``."""
        plain, _, part = resource.partition("/")  # behind a slash, 'auth can-i' takes the name of one object
        asked = ["auth", "can-i", verb, plain, *([f"--subresource={part}"] if part else [])]
        done = self._ran([*asked, *self._place()])
        answer = done.output.decode("utf-8", "replace").strip()
        if answer.startswith("yes"):
            return True
        if answer.startswith("no"):
            return False
        raise kubectl_output.refusal(done.errors.decode("utf-8", "replace"))

    def check(self, *documents: Mapping[str, Any]) -> None:
        """Have the API server check documents without keeping them."""
        for document in documents:
            self._asked(["create", "--dry-run=server", "--output=name", *self._place(), "--filename=-"], document)

    def create(self, document: Mapping[str, Any]) -> kubectl_output.PodJobStatus:
        return kubectl_output.job(self._json(["create", "--output=json", *self._place(), "--filename=-"], document))

    def job(self, resource: str, name: str) -> kubectl_output.PodJobStatus | None:
        """Return the state of a job, None where it does not exist."""
        done = self._ran(["get", resource, name, "--output=json", *self._place()])
        errors = done.errors.decode("utf-8", "replace")
        if done.returncode != 0 and kubectl_output.is_missing(errors):
            return None
        if done.returncode != 0:
            raise kubectl_output.refusal(errors)
        return kubectl_output.job(_read(done.output))

    def pods(self, selector: str) -> tuple[kubectl_output.Pod, ...]:
        asked = ["get", "pods", f"--selector={selector}", "--output=json", *self._place()]
        return kubectl_output.pods(self._json(asked))

    def delete(self, resource: str, name: str) -> str:
        """Delete a resource with what it owns, and return why that failed, '' where it did not."""
        words = ["delete", resource, name, "--ignore-not-found", "--wait=false", *self._place()]
        try:
            self._asked(words)
        except (ConfigError, ValidationCouldNotRunError) as error:
            return str(error)
        return ""

    def follow(self, selector: str, pods: int) -> subprocess.Popen[bytes]:
        """Start to read the logs of all pods with a label, from their begin and as they grow."""
        words = ["logs", f"--selector={selector}", "--follow", "--prefix", "--tail=-1", f"--max-log-requests={pods}"]
        return subprocess.Popen(
            ["kubectl", *self._options, *words, *self._place()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for this process, which then deletes the job
        )

    def _place(self) -> list[str]:
        return ["--namespace", self.namespace] if self.namespace else []

    def _json(
        self, words: Sequence[str], document: Mapping[str, Any] | None = None, *, is_local: bool = False
    ) -> dict[str, Any]:
        return _read(self._asked(words, document, is_local=is_local))

    def _asked(
        self, words: Sequence[str], document: Mapping[str, Any] | None = None, *, is_local: bool = False
    ) -> bytes:
        done = self._ran(words, document, is_local=is_local)
        if done.returncode != 0:
            raise kubectl_output.refusal(done.errors.decode("utf-8", "replace"))
        return done.output

    def _ran(
        self, words: Sequence[str], document: Mapping[str, Any] | None = None, *, is_local: bool = False
    ) -> python.Done:
        argv = ["kubectl", *self._options, *([] if is_local else [_REQUEST]), *words]
        try:
            return python.run(argv, b"" if document is None else json.dumps(document).encode(), _ANSWER_S)
        except FileNotFoundError:
            raise ValidationCouldNotRunError(
                "This machine has no kubectl; install it, or take the manifest of --render-only elsewhere."
            ) from None
        except subprocess.TimeoutExpired:
            raise ValidationCouldNotRunError(
                f"kubectl gave no answer within {_ANSWER_S:.0f} s; see 'kubectl cluster-info', and whether its "
                "credential plugin waits for an answer."
            ) from None
        except python.TooMuchOutputError as error:
            raise ValidationCouldNotRunError(f"kubectl: {error}; run it by hand.") from None


def _read(output: bytes) -> dict[str, Any]:
    """Return the JSON object that kubectl printed."""
    with contextlib.suppress(ValueError):
        value = node_json.loads(output)
        if isinstance(value, dict):
            return value
    raise ValidationCouldNotRunError("kubectl printed no JSON; run 'kubectl version' and see what answers.")
