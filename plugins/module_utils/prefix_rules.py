# SPDX-License-Identifier: Apache-2.0
"""Rules for the folder of the cluster's software, ``cluster_prefix``; texts in, clauses out, no I/O."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, List, Mapping

VARIABLE = "cluster_prefix"
DEFAULT = "/usr/local"
# configure, ld.so.conf, /etc/environment and PATH take each of these as it is.
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+")
_LONGEST = 100  # a first line of a script (#!) may have 127 characters
# The system's own folders, and those that a reboot empties or that users write to.
_LIBRARIES = "lib lib32 lib64 libx32"
_AT_ROOT = f"bin boot dev etc {_LIBRARIES} media proc root run sbin sys tmp var/lib/clusterctl var/run var/tmp".split()
_IN_USR = f"bin games include {_LIBRARIES} libexec sbin share src".split()
_WITH_ALL_BELOW = (*(f"/{name}" for name in _AT_ROOT), *(f"/usr/{name}" for name in _IN_USR))
_ALONE = ("/", "/home", "/mnt", "/usr", "/var")
_CURE = "name a folder of its own, such as /opt/cluster"


def problem(given: Any) -> str:
    """Return what is wrong with a value of ``cluster_prefix``, as a clause with its cure; '' if nothing is."""
    if given == DEFAULT:
        return ""
    shown = f"{VARIABLE} is {str(given)[:_LONGEST]!r}"
    if not isinstance(given, str) or not given.startswith("/"):
        return f"{shown}, which is not an absolute path; {_CURE}"
    if posixpath.normpath(given) != given or given.startswith("//"):
        return f"{shown}, which is not a normal path; write {posixpath.normpath('/' + given.strip('/'))!r}"
    if given != "/" and not _PATH.fullmatch(given):
        return (
            f"{shown}, and configure, ld.so.conf and /etc/environment take only letters, digits and . _ + - in a path; "
            "begin each name with a letter, a digit or _"
        )
    if len(given) > _LONGEST:
        wrong = f"which is longer than {_LONGEST} characters"
    elif given in _ALONE or any(f"{given}/".startswith(f"{folder}/") for folder in _WITH_ALL_BELOW):
        wrong = "which is not a folder for software"
    else:
        return ""
    return f"{shown}, {wrong}; {_CURE}"


def disagreement(prefixes: Mapping[str, str]) -> str:
    """Return how the prefixes of hosts differ, as a clause with its cure; '' if all are the same.

    Args:
        prefixes: the prefix of each host, by its name.
    """
    first: Dict[str, str] = {}
    for host, prefix in prefixes.items():
        first.setdefault(prefix, host)
    if len(first) < 2:  # noqa: PLR2004 - one cannot differ
        return ""
    shown = " and ".join(f"{prefix} on {host}" for prefix, host in list(first.items())[:2])
    return f"{VARIABLE} is {shown}, and one cluster has one; set it once, in group_vars/all.yml"


def folders_to(prefix: str) -> List[str]:
    """Return the folders on the way to a prefix and the prefix itself, the outermost first; none for the default."""
    names = [] if prefix == DEFAULT else prefix.strip("/").split("/")
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]
