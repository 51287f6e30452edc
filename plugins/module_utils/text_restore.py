# SPDX-License-Identifier: Apache-2.0
"""Take everything that clusterctl wrote out of a text: blocks, names of /etc/hosts, variables of /etc/environment."""

from __future__ import annotations

import re

from . import text_edit

_BEGIN = re.compile(r"^\s*# BEGIN clusterctl ([A-Za-z0-9][A-Za-z0-9_.-]{0,63})\s*$", re.MULTILINE)
_DISPLACED = re.compile(r"^# clusterctl ([A-Za-z0-9][A-Za-z0-9_.-]{0,63}) took names from: ", re.MULTILINE)
_NOTE = re.compile(r"^# clusterctl: (?:added|created|set|replaced) ", re.MULTILINE)


def without_ours(text: str) -> str:
    """Return the text without blocks of clusterctl, with displaced lines of a hosts file and old variables back.

    Raises:
        EditError: the markers of a block are doubled or unbalanced.
    """
    for marker in dict.fromkeys(_DISPLACED.findall(text)):
        text = text_edit.set_hosts(text, marker, "")
    for marker in dict.fromkeys(_BEGIN.findall(text)):
        text = text_edit.set_block(text, marker, "")
    if _NOTE.search(text):
        text = text_edit.set_environment(text, text_edit.Environment({}, {}, {}))
    return text
