"""The first look at the nodes of a job, which is under way while the rest of clusterctl is still being imported.

Everything that this module imports is needed to ask the nodes. Their answers are read when they are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.inventory import ansible_inventory
from clusterctl.launch import compose
from clusterctl.model import job_login
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.remote import facts, one_trip, reach, supervisor_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.launch.compose import JobOptions
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import AnyInventory, Host, Inventory, InventoryOptions
    from clusterctl.model.layout import Layout
    from clusterctl.remote.python import Ending

_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class WantedFiles:
    """The files that a job needs on every node, as :func:`clusterctl.remote.supervised_job.look` takes them."""

    names: tuple[str, ...]
    directory: str = ""


def files_of(wish: JobOptions, layout: Layout) -> WantedFiles:
    """Return the files that a job needs whose code lies on the nodes.

    Raises:
        ConfigError: the words of the launcher are not valid.
    """
    return WantedFiles(compose.needed_files(wish, layout).names, wish.directory)


class FirstLook:
    """The nodes of a job, which are being asked for their facts; the connections are shared with what follows."""

    def __init__(
        self, cluster: Inventory, hosts: Mapping[str, Host], control: Path, wanted: WantedFiles | None = None
    ) -> None:
        """Begin to ask.

        The hosts are as the job's user reaches them; ``control`` is the folder of shared connections. The facts tell of
        the ``wanted`` files as well.
        """
        self.cluster, self.hosts, self.control, self.wanted = cluster, hosts, control, wanted
        self._answers: Future[tuple[dict[str, Ending], dict[str, ProbeFailure]]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def probe(self) -> Probe:
        """Wait for the answers and return them."""
        facts.get_ready()
        endings, failures = self._answers.result()
        found: dict[str, NodeFacts] = {}
        for name, ending in endings.items():
            answer = facts.read(self.hosts[name], ending)
            if isinstance(answer, ProbeFailure):
                failures[name] = answer
            else:
                found[name] = answer
        return Probe(found, failures)

    def close(self) -> None:
        """End the questions that are still under way."""
        self._closed = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _ask(self) -> None:
        try:
            self._answers.set_result(asyncio.run(self._asking()))
        except BaseException as error:  # noqa: BLE001 - it is raised where the answers are wanted
            self._answers.set_exception(error)

    async def _asking(self) -> tuple[dict[str, Ending], dict[str, ProbeFailure]]:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._closed:
            return {}, {}
        requests = facts.requests(
            self.hosts.values(),
            watch={name: supervisor_files.watch_entries(host) for name, host in self.hosts.items()},
            artifacts=training_stack.ARTIFACTS,
            libraries=training_stack.LIBRARIES,
            job_look=None if self.wanted is None else {"names": self.wanted.names, "directory": self.wanted.directory},
        )
        return await one_trip.ask(
            requests,
            facts.NODE_PROBE,
            _unread,
            timeout_s=_PROBE_TIMEOUT_S,
            control_dir=self.control,
            beside=() if self.wanted is None else (facts.JOB_LOOK,),
        )


@contextlib.contextmanager
def begun(
    inventory: AnyInventory, options: InventoryOptions, wanted: Callable[[Layout], WantedFiles] | None = None
) -> Iterator[FirstLook]:
    """Yield a look that is under way, with shared connections that end afterwards.

    ``wanted`` returns the files that a job needs, for the layout of the nodes.

    Raises:
        ConfigError: the inventory is not valid, or a node is not reached by plain ssh.
    """
    cluster = ansible_inventory.load(inventory, options)
    hosts = {host.name: _ours(host) for host in cluster.selected_hosts}
    files = wanted(next(iter(hosts.values())).layout) if wanted else None
    with reach.control_folder() as control, contextlib.closing(FirstLook(cluster, hosts, control, files)) as look:
        yield look


def _ours(host: Host) -> Host:
    if not host.by_ssh:
        raise ConfigError(
            f"{host.name} is not reached by plain ssh with a key, which a job needs: {host.not_by_ssh}. Give it a "
            "key, or leave it out with --limit."
        )
    return reach.lasting(job_login.job_host(host))  # what ranks will see


def _unread(_host: Host, ending: Ending) -> Ending | ProbeFailure:
    return ending
