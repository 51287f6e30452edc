"""The texts that kubectl gives: the state of a job, its pods and why they do not run, lines of logs, and refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from clusterctl.support import content, words
from clusterctl.support.errors import ClusterctlError, ConfigError, ValidationCouldNotRunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from module_utils import error_meanings  # mypy finds it by mypy_path
else:
    error_meanings = content.module_util("error_meanings")

Phase: TypeAlias = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]

_PREFIX = re.compile(r"\[pod/(?P<pod>[^/\]]+)/[^\]]*\] ?(?P<text>.*)", re.DOTALL)
# Reasons of the kubelet for which a container never starts as it is.
_HOPELESS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
_STARTLESS = frozenset({"StartError", "ContainerCannotRun"})
_MOST_SAID = 200
_MOST_TEXT = 400  # characters; a name has 253
_MOST_READ = 4096
_PHASES: tuple[Phase, ...] = ("Pending", "Running", "Succeeded", "Failed")
_MOST_REFUSED = 300
# klog's lines come before the sentence: "E1123 10:03:32.406805   25758 memcache.go:265] ...".
_LOG_LINE = re.compile(r"[EWI]\d{4} \d\d:\d\d:\d\d")
# kubectl's own words around the cause, and its advice to look away.
_AROUND = re.compile(
    r"error (?:validating|when creating) \"STDIN\": |error validating data: |failed to download openapi: "
    r"|; if you choose to.*"
)


@dataclass(frozen=True)
class PodJobStatus:
    """A job as its operator tells it; ``ended`` is Succeeded, Failed or empty."""

    uid: str
    ended: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Pod:
    """A pod."""

    name: str  # of the pod
    node: str = ""  # where it runs, empty before it has a node
    phase: Phase = "Pending"  # as Kubernetes has it
    waits: str = ""  # why it does not run yet, in words
    is_hopeless: bool = False  # whether it never starts as it is
    died: str = ""  # why its container ended badly, in words; empty where it did not

    @property
    def has_started(self) -> bool:
        """Whether its program runs or has run."""
        return self.phase in {"Running", "Succeeded"} or (self.phase == "Failed" and not self.is_hopeless)


def job(document: Mapping[str, Any]) -> PodJobStatus:
    """Return the state of an MPIJob or a PyTorchJob."""
    conditions = _list(_map(document.get("status")).get("conditions"))
    for condition in conditions:
        kind = str(condition.get("type", ""))
        if kind in {"Succeeded", "Failed"} and str(condition.get("status")) == "True":
            return PodJobStatus(_uid(document), kind, _text(condition.get("reason")), _text(condition.get("message")))
    return PodJobStatus(_uid(document))


def pods(document: Mapping[str, Any]) -> tuple[Pod, ...]:
    """Return the pods of a list, by name."""
    return tuple(sorted((_pod(item) for item in _list(document.get("items"))), key=lambda pod: pod.name))


def log_line(line: str) -> tuple[str, str]:
    """Return the pod and the text of a line of ``kubectl logs --prefix``; the pod is empty where kubectl speaks."""
    match = _PREFIX.fullmatch(line)
    return (match["pod"], match["text"]) if match else ("", line)


def waiting(found: Sequence[Pod], wanted: int) -> str:
    """Say what the pods of a job wait for; empty where all have started."""
    late = [pod for pod in found if not pod.has_started]
    if len(found) < wanted and not late:
        return f"{len(found)} of {wanted} pods exist"
    first = next((pod for pod in late if pod.waits), None)
    if first is not None:
        return f"pod {first.name}: {first.waits}"
    return f"{len(found) - len(late)} of {wanted} pods run" if late else ""


def refusal(said: str) -> ClusterctlError:
    """Return the error for what kubectl said on stderr: of the configuration (exit 1), or of the cluster (exit 11)."""
    text = meaningful(said)[:_MOST_READ]
    found = error_meanings.find("kubectl", text)
    if found is None:
        return ValidationCouldNotRunError(f"kubectl failed ({_shortened(text) or 'without a word'}); try it by hand.")
    group, namespace = found.words.get("group"), found.words.get("namespace")
    place = f"in the namespace '{namespace}'" if namespace else "in the cluster"
    cause, cure = found.meaning(of=f".{group}" if group else "", place=place)
    kind = ConfigError if found.row.kind == "configuration" else ValidationCouldNotRunError
    return kind(f"{cause}; {cure}." if found.row.kind == "rights" else f"{cause}; {cure} ({_shortened(text)}).")


def is_missing(said: str) -> bool:
    """Tell whether the resource that was asked for does not exist."""
    return "(NotFound)" in said


def meaningful(said: str) -> str:
    """Return what kubectl said, without the lines of its log and its warnings."""
    lines = [line.strip() for line in said.splitlines()]
    kept = [line for line in lines if line and not _LOG_LINE.match(line) and not line.startswith("Warning: ")]
    return "\n".join(kept) or said.strip()


def no_right(verb: str, resource: str, namespace: str) -> str:
    """Return the sentence for a right that this user lacks."""
    return (
        f"This user may not {verb} {resource} in the namespace '{namespace}'; have a role with the rights of "
        "docs/how-to/pods.md bound to it, or choose another --namespace or --context."
    )


def _shortened(text: str) -> str:
    line = " ".join(text.splitlines()[0].split()) if text else ""
    line = _AROUND.sub("", line).removeprefix("error: ").removeprefix("Error: ").rstrip(".")
    return line if len(line) <= _MOST_REFUSED else f"{line[: _MOST_REFUSED - 3]}..."


def _pod(item: Mapping[str, Any]) -> Pod:
    status = _map(item.get("status"))
    containers = _list(status.get("initContainerStatuses")) + _list(status.get("containerStatuses"))
    waits, hopeless, died = _unscheduled(_list(status.get("conditions"))), False, ""
    for state in (_map(container.get("state")) for container in containers):
        held = _map(state.get("waiting"))
        if (reason := _text(held.get("reason"))) and reason not in {"ContainerCreating", "PodInitializing"}:
            waits, hopeless = _words(held), hopeless or reason in _HOPELESS
        over = _map(state.get("terminated"))
        if over and over.get("exitCode"):
            reason = _text(over.get("reason"))
            if reason in _STARTLESS:
                waits, hopeless = _words(over), True
            died = died or f"{reason or 'Error'} (exit code {_text(over['exitCode'])})"
    if status.get("reason"):  # of the whole pod, such as Evicted
        died = _words(status)
    phase = _text(status.get("phase", "Pending"))
    return Pod(
        name=_text(_map(item.get("metadata")).get("name")),
        node=_text(_map(item.get("spec")).get("nodeName")),
        phase=next((known for known in _PHASES if known == phase), "Unknown"),
        waits=waits,
        is_hopeless=hopeless,
        died=died,
    )


def _unscheduled(conditions: Iterable[Mapping[str, Any]]) -> str:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _words(condition)
    return ""


def _words(state: Mapping[str, Any]) -> str:
    """Return reason and message as one line of bounded length."""
    line = ": ".join(filter(None, (_text(state.get(key)) for key in ("reason", "message"))))
    return line if len(line) <= _MOST_SAID else f"{line[: _MOST_SAID - 3]}..."


def _text(value: Any) -> str:
    """Return a text or a number as one printable line of bounded length; '' for anything else."""
    if not isinstance(value, str | int):
        return ""
    return words.escaped(" ".join(str(value)[:_MOST_READ].split()), _MOST_TEXT)


def _uid(document: Mapping[str, Any]) -> str:
    return _text(_map(document.get("metadata")).get("uid"))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
