# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the events of a run into the file that clusterctl reads: one JSON document a line.

The text of the screen also holds what nodes say, so no event is ever read from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ansible import constants  # type: ignore[import-untyped]
from ansible.utils.display import Display  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line

# Have Ansible remove keys of a module's result that its main process would use without a look at their form.

_SETTING = "INTERNAL_RESULT_KEYS"  # Ansible removes these from what a module answers, with a warning
# A number in its place ends the whole run, without the name of the node. No module of the collection answers with it.
_KEYS = ("ansible_stats",)


def refuse_keys() -> None:
    """Remove the keys from now on; a release of Ansible without the setting goes on as it is."""
    known = getattr(constants, _SETTING, None)
    if isinstance(known, tuple):
        setattr(constants, _SETTING, (*known, *(key for key in _KEYS if key not in known)))


# How often Ansible's main process looks for results, in seconds. The setting internal_poll_interval has no variable.
_POLL, _POLL_BY_DEFAULT_S, _POLL_S = "DEFAULT_INTERNAL_POLL_INTERVAL", 0.001, 0.01


def look_less_often() -> None:
    """Let the main process wait longer between two looks for results, where nobody has set how long."""
    if getattr(constants, _POLL, None) == _POLL_BY_DEFAULT_S:
        setattr(constants, _POLL, _POLL_S)


_VARIABLE = "CLUSTERCTL_EVENTS"


def path() -> str:
    """Return the file's path; '' in a run that clusterctl did not start."""
    return os.environ.get(_VARIABLE, "")


class SizeError(Exception):
    """An event is larger than it may be; nothing is written."""


def write(event: Mapping[str, Any], most: int = 1 << 24) -> None:
    """Add an event to the file, in one piece: workers of Ansible write into it at the same time.

    Args:
        event: JSON.
        most: bytes.

    Raises:
        SizeError: it has more bytes.
        RecursionError: it is too deep for JSON.
    """
    line = json.dumps(event, default=str).encode() + b"\n"
    if len(line) > most:
        raise SizeError(f"an event has {len(line)} bytes, of at most {most}")
    descriptor = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def note(host: str, text: str) -> None:
    """Tell what a long task is at; without clusterctl it goes to the screen."""
    if path():
        write({"event": "note", "event_data": {"host": host, "text": text}})
    else:
        Display().display(f"{host}: {one_line(text)}")
