"""Look at the hardware of all nodes: one typed record per node, over one ssh connection each.

The program that answers is the package ``plugins/module_utils/node_look/hardware``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from clusterctl.model.hardware import Hardware
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import one_trip, python
from clusterctl.remote.reach import where

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host

PROGRAM = "node_look.hardware.record"
_KEYS = ("schema_version", "readings", "counters")


def gather(
    hosts: Iterable[Host],
    *,
    sections: Sequence[str] | None = None,
    since: Mapping[str, float] | None = None,
    timeout_s: float = 25,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
    """Look at every host, at most ``fanout`` at a time.

    Args:
        hosts: the hosts, reachable by plain ssh (``Host.by_ssh``). A host with ``become`` is looked at through sudo.
        sections: names of the sections of ``node_look.hardware``; None runs all.
        since: by host name, the time from which events count, in seconds since the epoch; the default is a day ago.
        timeout_s: seconds from the start of a connection until it is given up.
        fanout: connections at a time.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.

    Returns:
        The records and the failures by the host's name; nothing is raised for a host.
    """
    requests = {
        host: json.dumps(
            {
                "sections": None if sections is None else list(sections),
                "since": (since or {}).get(host.name),
                "all_s": timeout_s * 0.8,
            }
        ).encode()
        for host in hosts
    }
    return one_trip.ask(requests, PROGRAM, _read, timeout_s=timeout_s, fanout=fanout, control_dir=control_dir)


def _read(host: Host, ending: python.Ending) -> Hardware | ProbeFailure:
    answer = python.last_answer(ending.output, _KEYS)
    try:
        return Hardware.model_validate(answer)
    except ValidationError as problem:
        first = problem.errors()[0]
        cause = f"{'.'.join(str(part) for part in first['loc']) or 'the answer'}: {first['msg']}"
        return ProbeFailure(host.name, "error", f"{where(host)} gave no readable record of its hardware ({cause}).")
