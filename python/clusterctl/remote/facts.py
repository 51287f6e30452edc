"""Gather the facts of all nodes: one typed record per node, over one ssh connection each.

The types of the facts are imported when the first node has answered, so that asking need not wait for them.

The program that answers is the package ``plugins/module_utils/node_look``.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any, TypedDict

from clusterctl.model.clock import Clock
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.remote import one_trip, python
from clusterctl.remote.reach import where
from clusterctl.remote.ssh_failure import ended_early, shortened
from clusterctl.support import content as collection
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from clusterctl.model.facts import NodeFacts, WatchEntry
    from clusterctl.model.hardware import Hardware
    from clusterctl.model.hosts import Host


NODE_PROBE = python.NODE_PROBE
JOB_LOOK = "job_look.py"


class Questions(TypedDict, total=False):
    """What a node is asked."""

    watch: Mapping[str, Sequence[WatchEntry]] | None  # by host name, the entries whose present state is wanted
    content: Sequence[int]  # slices of the watched artifacts' files whose content is compared, from 0 to 6
    # artifacts to verify, each with ``name`` and ``link``, and optionally ``inputs``: names of inputs to report. A
    # relative link is below the host's prefix. None verifies every installed artifact.
    artifacts: Sequence[Mapping[str, Any]] | None
    # libraries to find as the loader does, each with ``soname``, and optionally ``also``: patterns of further files to
    # report, which may be relative to the host's prefix
    libraries: Sequence[Mapping[str, Any]]
    # names that every node looks up in addition to its own, as for ssh; None looks up nothing
    resolve: Sequence[str] | None
    leftovers: bool  # also find ranks whose launcher is gone
    busy: bool  # also find ranks, and processes that use an artifact
    check_sudo: bool  # also find out whether the login user has sudo without a password
    sessions: bool  # also start the login shell of the account that jobs run as, where that is the login user
    # by host name, the account that jobs run as, '' for the login user. It is then looked at, too.
    job_users: Mapping[str, str] | None
    job_look: Mapping[str, Any] | None  # names and directory of files that a job needs; needs JOB_LOOK beside


def gather(
    hosts: Iterable[Host],
    *,
    timeout_s: float = 30,
    fanout: int = 64,
    control_dir: Path | None = None,
    ended: Callable[[int], None] = lambda _count: None,
    **questions: Unpack[Questions],
) -> Probe:
    """Ask every host for its facts, at most ``fanout`` at a time.

    The hosts are reachable by plain ssh (``Host.by_ssh``). One with ``become`` is asked through sudo, with its password
    where it has one. ``timeout_s`` counts from the start of a connection. ``ended`` hears how many hosts have answered
    or failed by now, whenever some have.

    Returns:
        A record or a failure for every host; nothing is raised for a host.
    """
    asked = requests(hosts, **questions)
    trip = one_trip.ask(
        asked, NODE_PROBE, read, timeout_s=timeout_s, fanout=fanout, control_dir=control_dir, ended=ended
    )
    return Probe(*asyncio.run(trip))


def requests(hosts: Iterable[Host], **questions: Unpack[Questions]) -> dict[Host, bytes]:
    watch, users = questions.get("watch") or {}, questions.get("job_users") or {}
    artifacts, resolve = questions.get("artifacts"), questions.get("resolve")
    asked = {
        "content": list(questions.get("content", ())),
        "artifacts": None if artifacts is None else [dict(entry) for entry in artifacts],
        "libraries": [dict(entry) for entry in questions.get("libraries", ())],
        "resolve": None if resolve is None else list(resolve),
        "leftovers": questions.get("leftovers", False),
        "busy": questions.get("busy", False),
        "check_sudo": questions.get("check_sudo", False),
        "sessions": questions.get("sessions", False),
        "job_look": questions.get("job_look"),
        "aloud": True,
    }
    return {
        host: json.dumps(
            {
                "prefix": host.layout.prefix,
                "watch": [_asked(entry) for entry in watch.get(host.name, ())],
                "job_user": users.get(host.name),
                **asked,
            }
        ).encode()
        for host in hosts
    }


def _asked(entry: WatchEntry) -> dict[str, Any]:
    return {key: entry[key] for key in ("path", "kind", "marker") if key in entry}


def get_ready() -> None:
    """Import what reading an answer takes, while no answer is there."""
    from clusterctl.model.facts import NodeFacts  # noqa: PLC0415 - see above

    NodeFacts.model_rebuild()
    collection.module_util("node_record_gate")


def read(host: Host, ending: python.Ending) -> NodeFacts | ProbeFailure:
    """Return the record in the output, which may have lines of a login script around it."""
    from clusterctl.model.facts import NodeFacts  # noqa: PLC0415 - see above

    line = next((line for line in reversed(ending.output.splitlines()) if line.startswith(b'{"schema_version"')), b"")
    if not line:
        return ended_early(host, ending.returncode, ending.errors, ending.output)
    try:
        found = NodeFacts.model_validate(collection.module_util("node_record_gate").passed(node_json.loads(line)))
    except ValueError as problem:
        cause = _first_error(problem)
    else:
        return found.model_copy(update={"clock": _clock(found.time, ending)})
    evidence = f" {shortened(ending.errors)}" if ending.errors.strip() else ""
    return ProbeFailure(host.name, "error", f"{where(host)} gave no readable record ({cause}).{evidence}")


def _first_error(problem: ValueError) -> str:
    """Return what a record has that is not of its form."""
    from pydantic import ValidationError  # noqa: PLC0415 - see above

    if not isinstance(problem, ValidationError):
        return str(problem)
    first = problem.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the answer'}: {first['msg']}"


def _clock(told: float, ending: python.Ending) -> Clock | None:
    """Compare a node's time, which it took between the question and its answer, with this machine's."""
    if not told or not ending.ended:
        return None
    return Clock(told - (ending.began + ending.ended) / 2, (ending.ended - ending.began) / 2)


# --- Look at the hardware of all nodes: one typed record per node, over one ssh connection each -----------------------
#
# The program that answers is the package ``plugins/module_utils/node_look/hardware``.

PROGRAM = "node_look.hardware.record"
_KEYS = ("schema_version", "readings", "counters")


def gather_hardware(
    hosts: Iterable[Host],
    *,
    sections: Sequence[str] | None = None,
    since: Mapping[str, float] | None = None,
    timeout_s: float = 25,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
    """Look at every host, at most ``fanout`` at a time.

    The hosts are reachable by plain ssh (``Host.by_ssh``). One with ``become`` is looked at through sudo. ``sections``
    are names of those of ``node_look.hardware``; None runs all. ``since`` has by host the time from which events count,
    in seconds since the epoch; the default is a day ago.

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
    read = functools.partial(_read_hardware, tuple(sections or ()))
    trip = one_trip.ask(requests, PROGRAM, read, timeout_s=timeout_s, fanout=fanout, control_dir=control_dir)
    return asyncio.run(trip)


def _read_hardware(sections: tuple[str, ...], host: Host, ending: python.Ending) -> Hardware | ProbeFailure:
    from clusterctl.model.hardware import OF_FABRIC, Hardware  # noqa: PLC0415 - see above

    answer = python.last_answer(ending.output, _KEYS)
    if answer is None:
        return ended_early(host, ending.returncode, ending.errors, ending.output)
    try:
        found = Hardware.model_validate(answer)
        return found if sections == OF_FABRIC else found.without_fabric()
    except ValueError as problem:
        cause = _first_error(problem)
    return ProbeFailure(host.name, "error", f"{where(host)} gave no readable record of its hardware ({cause}).")
