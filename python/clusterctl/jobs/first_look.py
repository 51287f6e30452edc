"""The first look at the nodes of a job, which is under way while the rest of clusterctl is still being imported.

Everything that this module imports is needed to ask the nodes. Their answers are read when they are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.inventory import ansible_inventory
from clusterctl.model import job_login
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.remote import facts, one_trip, reach, supervisor_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import AnyInventory, Host, Inventory, InventoryOptions
    from clusterctl.remote.python import Ending

_PROBE_TIMEOUT_S = 30.0


class FirstLook:
    """The nodes of a job, which are being asked for their facts; the connections are shared with what follows."""

    def __init__(self, cluster: Inventory, hosts: Mapping[str, Host], control: Path) -> None:
        """Begin to ask.

        The hosts are as the job's user reaches them; ``control`` is the folder of shared connections.
        """
        self.cluster, self.hosts, self.control = cluster, hosts, control
        self._answers: Future[tuple[dict[str, Ending], dict[str, ProbeFailure]]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def probe(self) -> Probe:
        """Wait for the answers and return them."""
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
        )
        return await one_trip.ask(
            requests,
            facts.NODE_PROBE,
            _unread,
            timeout_s=_PROBE_TIMEOUT_S,
            control_dir=self.control,
        )


@contextlib.contextmanager
def begun(inventory: AnyInventory, options: InventoryOptions) -> Iterator[FirstLook]:
    """Yield a look that is under way, with shared connections that end afterwards.

    Raises:
        ConfigError: the inventory is not valid, or a node is not reached by plain ssh.
    """
    cluster = ansible_inventory.load(inventory, options)
    hosts = {host.name: _ours(host) for host in cluster.selected_hosts}
    with reach.control_folder() as control, contextlib.closing(FirstLook(cluster, hosts, control)) as look:
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
