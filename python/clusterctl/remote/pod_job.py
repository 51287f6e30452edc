"""Hold one job of Kubernetes for the time of a ``with`` block: create it, wait for pods, read logs, delete it.

The job comes first and owns what is created for it, so that nothing outlives it. It has limits of its own by which
Kubernetes ends it and takes it away where this process is killed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol, final

from clusterctl.remote import kubectl_output
from clusterctl.support.errors import ClusterctlError, ValidationCouldNotRunError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Any

    from clusterctl.remote.kubectl import Kubectl

_LOOK_EVERY_S = 2.0
_ASK_EVERY_S = 5.0
_REST_S = 10.0  # the rest of the logs comes with the end of a job
_POLL_S = 0.2
_LATE_S = 60.0  # after the job's own limits; an API server that answers no more does not tell the end
_MOST_WAITING = 1000  # lines; kubectl waits with more
_MOST_OF_A_LINE = 1 << 17
_TIME_IS_UP = "eadline"


class Submitted(Protocol):
    """What is created in the cluster."""

    @property
    def name(self) -> str:
        """The name of the job and of what it owns."""

    @property
    def resource(self) -> str:
        """The job's resource, as kubectl takes it."""

    @property
    def job(self) -> Mapping[str, Any]:
        """The job's document."""

    @property
    def selector(self) -> str:
        """The label of its pods."""

    @property
    def pod_count(self) -> int:
        """How many pods it has."""

    def owned(self, uid: str) -> dict[str, Any]:
        """Return the document of what the job of this uid owns."""


@final
class PodJob:
    """One job, from its creation to its deletion."""

    def __init__(
        self,
        kubectl: Kubectl,
        submitted: Submitted,
        start_within_s: float,
        time_s: float,
        tell: Callable[[str], None] = lambda _words: None,
    ) -> None:
        """Prepare it.

        A job whose pods have not started after ``start_within_s`` is deleted. ``time_s`` is the limit of its checks,
        for messages.
        """
        self._kubectl, self._submitted, self._tell = kubectl, submitted, tell
        self._start_within_s, self._time_s = start_within_s, time_s
        self._created = False
        self._pods: tuple[kubectl_output.Pod, ...] = ()
        self.left = ""  # after the block: a sentence about what could not be deleted
        self.gone = ""  # why the job ended before its pods said that they are done, a clause with its cure

    @property
    def pods(self) -> tuple[kubectl_output.Pod, ...]:
        """The pods as they were last seen."""
        return self._pods

    @property
    def _called(self) -> str:
        return f"{self._submitted.resource.partition('.')[0]}/{self._submitted.name}"

    @property
    def _limit(self) -> str:
        return f"time limit of {(self._start_within_s + self._time_s) / 60:.0f} min"

    def __enter__(self) -> PodJob:
        """Create the job and what it owns."""
        self._created = True  # a signal may come between the creation and the answer
        try:
            status = self._kubectl.create(self._submitted.job)
            self._kubectl.create(self._submitted.owned(status.uid))
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the job and what it owns."""
        self._delete()

    def _delete(self) -> None:
        if not self._created:
            return
        name = self._submitted.name
        # The ConfigMap goes with the job; a cluster may be slow to collect what has lost its owner.
        failed = [self._kubectl.delete(resource, name) for resource in (self._submitted.resource, "configmaps")]
        if why := next(filter(None, failed), ""):
            self.left = (
                f"{self._called} may still be in the namespace '{self._kubectl.namespace}', where its limits end it; "
                "run "
                f"'kubectl delete {self._called} configmap/{name} -n {self._kubectl.namespace}'. {why}"
            )

    def wait(self) -> tuple[kubectl_output.Pod, ...]:
        """Wait until all pods have started, and return them.

        Raises:
            ValidationCouldNotRunError: they do not in time, or never will.
        """
        until = time.monotonic() + self._start_within_s
        words = ""
        while True:
            status = self._kubectl.job(self._submitted.resource, self._submitted.name)
            self._pods = self._kubectl.pods(self._submitted.selector)
            words = kubectl_output.waiting(self._pods, self._submitted.pod_count)
            if len(self._pods) >= self._submitted.pod_count and not words:
                return self._pods
            if status is None:
                raise ValidationCouldNotRunError(f"{self._called} is gone: somebody deleted it; try again.")
            hopeless = next((pod for pod in self._pods if pod.is_hopeless), None)
            if hopeless is not None:
                raise ValidationCouldNotRunError(
                    f"Pod {hopeless.name} cannot start ({hopeless.waits}), and the job is deleted; see that --image "
                    "exists, that the nodes may pull it, and that it has --python."
                )
            if status.ended and not self._speaks():
                raise ValidationCouldNotRunError(f"{self._ended_words(status)}.")
            if status.ended:
                return self._pods
            if time.monotonic() > until:
                raise ValidationCouldNotRunError(self._never_started(words))
            self._tell(f"{self._called} waits: {words}")
            time.sleep(_LOOK_EVERY_S)

    def _speaks(self) -> bool:
        """Whether a pod has run, so that its log says more."""
        return any(pod.has_started for pod in self._pods)

    def _never_started(self, words: str) -> str:
        cure = "give a longer --start-within, or ask for fewer --nodes, --gpus-per-node, --cpus or --memory"
        if not self._pods:
            words, cure = "no pod was made", "see that the operator of its kind runs, or give a longer --start-within"
        return f"{self._called} did not start within {self._start_within_s:.0f} s and is deleted ({words}); {cure}."

    def lines(self, is_done: Callable[[], bool]) -> Iterator[tuple[str, str, float]]:
        """Yield the lines of all pods' logs as they come: the pod, the text, and when it came (monotonic).

        ``is_done`` says whether every pod that speaks has said that it is done.
        """
        taken: Counter[str] = Counter()
        ask_at = time.monotonic() + _ASK_EVERY_S
        late_at = time.monotonic() + self._start_within_s + self._time_s + _LATE_S
        end_at: float | None = None
        while True:
            heard: queue.Queue[tuple[str, str, float] | None] = queue.Queue(_MOST_WAITING)
            process = self._kubectl.follow(self._submitted.selector, self._submitted.pod_count)
            try:
                threading.Thread(target=_read, args=(process, heard), name="kubectl logs", daemon=True).start()
                seen: Counter[str] = Counter()  # of this reading; the logs begin anew
                over = False
                while not over:
                    with contextlib.suppress(queue.Empty):
                        item = heard.get(timeout=_POLL_S)
                        over = item is None
                        if item is not None and item[0]:
                            seen[item[0]] += 1
                            if seen[item[0]] > taken[item[0]]:
                                taken[item[0]] += 1
                                yield item
                    if is_done():
                        return
                    if time.monotonic() > late_at:
                        self.gone = self.gone or (
                            f"{self._called} is past its {self._limit}, and Kubernetes does not tell its end; see "
                            "'kubectl cluster-info'"
                        )
                        return
                    if time.monotonic() >= ask_at:
                        ask_at = time.monotonic() + _ASK_EVERY_S
                        if end_at is None and self._has_ended():
                            end_at = time.monotonic() + _REST_S
                    if end_at is not None and time.monotonic() > end_at:
                        return
            finally:
                process.kill()
                process.wait()
            time.sleep(_POLL_S)  # the connection broke, or a pod had no log yet

    def _has_ended(self) -> bool:
        """Ask whether the job has ended, and note why."""
        with contextlib.suppress(ClusterctlError):  # an API server that does not answer for a moment
            status = self._kubectl.job(self._submitted.resource, self._submitted.name)
            if status is None:
                self.gone = f"{self._called} is gone: somebody deleted it; try again"
                return True
            with contextlib.suppress(ClusterctlError):
                self._pods = self._kubectl.pods(self._submitted.selector) or self._pods
            if status.ended:
                self.gone = self._ended_words(status)
                return True
        return False

    def _ended_words(self, status: kubectl_output.PodJobStatus) -> str:
        said = " ".join(f"{status.reason} {status.message}".split())
        if _TIME_IS_UP in said:
            return f"{self._called} was ended by its {self._limit}; give a longer --time, or name fewer --checks"
        died = [f"pod {pod.name} on {pod.node or 'no node'}: {pod.died}" for pod in self._pods if pod.died]
        why = "; ".join(died) or said or status.ended
        return f"{self._called} ended early ({why}); see 'kubectl describe' of its pods while the job runs again"


def _read(process: subprocess.Popen[bytes], heard: queue.Queue[tuple[str, str, float] | None]) -> None:
    """Pass the lines on, without the rest of one that is too long: it could begin like a line of another pod."""
    is_whole = True
    while process.stdout and (line := process.stdout.readline(_MOST_OF_A_LINE)):
        if is_whole:
            pod, text = kubectl_output.log_line(line.decode("utf-8", "replace").rstrip("\n"))
            heard.put((pod, text, time.monotonic()))
        is_whole = line.endswith(b"\n")
    heard.put(None)
