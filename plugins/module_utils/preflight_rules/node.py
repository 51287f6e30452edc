# SPDX-License-Identifier: Apache-2.0
"""Check one node by itself: distribution, Python, root, disk and host keys, and why it could not be looked at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

from .. import known_messages
from .model import Limits, Problem
from .words import cut

_GIB = 1024**3
_NO_SHELLS = ("nologin", "false")
_VARIABLE = "cluster_prefix"


def look_failure(host: str, text: str) -> Problem:
    """Return the problem behind a failed look at a node.

    Args:
        host: the node.
        text: message, stderr and stdout of the failure.
    """
    found = known_messages.find("Ansible", text)
    if found is None:
        return Problem(host, "error", f"it could not be looked at: {cut(' '.join(text.split()), 300)}", "see the log")
    # Ansible's own words around those of ssh repeat the sentence.
    line = cut(re.sub(r"^.*(?:reached over ssh|to the host via ssh): *", "", found.line.rstrip(".")), 160)
    row = found.row
    return Problem(host, row.kind, f"{row.cause} ({line})" if line else row.cause, row.cure)


def node_problems(host: str, node: Mapping[str, Any], limits: Limits, *, builder: bool) -> list[Problem]:
    """Return the problems of one node: distribution, Python, root, disk, host keys, ssh.

    Args:
        host: its inventory name.
        node: its facts.
        limits: what to compare with.
        builder: whether the node may compile, which needs more disk.
    """
    found = [
        *_platform(host, node, limits),
        *_root(host, node),
        *_prefix(host, node),
        *_job_user(host, node),
        *_disk(host, node, limits, builder=builder),
    ]
    if not (node.get("ssh") or {}).get("host_keys"):
        found.append(
            Problem(
                host,
                "host_key",
                "its sshd has no readable host key under /etc/ssh",
                "run 'ssh-keygen -A' on it and restart sshd",
            )
        )
    if (node.get("tools") or {}).get("ssh") is False:
        found.append(
            Problem(
                host,
                "ssh",
                "the client of ssh is not installed, and mpirun starts its daemons on other nodes with it",
                "install openssh-client (Debian, Ubuntu) or openssh-clients (Enterprise Linux, openSUSE) there",
            )
        )
    return found


def _platform(host: str, node: Mapping[str, Any], limits: Limits) -> Iterable[Problem]:
    distribution = node.get("distribution") or {}
    name, release = str(distribution.get("id", "")), str(distribution.get("version_id", ""))
    releases = [str(one) for one in limits.supported.get(name, ())]
    if not any(release == one or release.startswith(f"{one}.") for one in releases):
        known = "; ".join(f"{one} {', '.join(map(str, its))}" for one, its in limits.supported.items())
        yield Problem(
            host,
            "distribution",
            f"{name or 'an unnamed distribution'} {release} is not supported",
            f"use one of: {known}; or add it to preflight_supported at your own risk",
        )
    python = str((node.get("python") or {}).get("version", "0"))
    if _numbers(python) < _numbers(limits.min_python):
        yield Problem(
            host,
            "python",
            f"Python {python} is too old, {limits.min_python} is the oldest that works",
            "install a newer Python of the distribution and set ansible_python_interpreter to it, such as"
            " /usr/bin/python3.11",
        )


def _root(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    user = node.get("user") or {}
    if user.get("sudo") is not True:  # true only if the probe itself ran as root
        name = user.get("name") or "the login user"
        cure = f"set ansible_become=true in the inventory or give --become ({name} needs sudo), or log in as root"
        yield Problem(host, "sudo", f"tasks run as {name}, not as root", cure)


def _job_user(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Refuse an account for jobs that is root's, cannot log in, or has no home that answers."""
    user = node.get("job_user") or {}
    if not user or user["uid"] < 0:  # the role ssh_mesh makes it
        return
    if user["uid"] == 0:
        cure = "set cluster_user to a user without privileges"
        yield Problem(host, "cluster_user", f"user {user['name']} has the uid 0", cure)
    if str(user["shell"]).rpartition("/")[2] in _NO_SHELLS:
        cure = f"set a login shell with 'usermod --shell /bin/bash {user['name']}', or set cluster_user to another name"
        problem = f"user {user['name']} has the shell {user['shell']} and cannot log in"
        yield Problem(host, "cluster_user", problem, cure)
    problem, cure = without_home(user)
    if problem:
        yield Problem(host, "cluster_user", problem, cure)


def without_home(user: Mapping[str, Any]) -> tuple[str, str]:
    """Return the problem and the cure of an account whose home is missing or hangs; two times '' where it is there.

    Args:
        user: the account for jobs as a node's facts have it.
    """
    if user["uid"] < 0:
        return "", ""
    name = user["name"]
    if not user.get("home_answers", True):
        cure = "mend its file server, which /proc/mounts names, or mount it anew"
        return f"the home {user['home']} of user {name} is on a file system that does not answer", cure
    if user.get("has_home", True):
        return "", ""
    cure = f"make or mount it; where the first login makes homes (pam_mkhomedir), run 'su - {name} -c true' as root"
    return f"the home {user['home']} of user {name} is missing", cure


def _prefix(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Judge the folder of the software: root alone may write there, and the node has no software elsewhere."""
    its = node.get("prefix") or {}
    path, others = str(its.get("path", "")), its.get("others") or []
    if its.get("problem"):
        cure = "give it to root with mode 755, or set cluster_prefix to another folder"
        yield Problem(host, "prefix", str(its["problem"]), cure, _VARIABLE)
    if others:
        words = f"its software of clusterctl is in {others[0]}, and cluster_prefix is {path}"
        cure = f"run 'clusterctl uninstall' first, or set cluster_prefix to {others[0]}"
        yield Problem(host, "prefix", words, cure, _VARIABLE)
    elif its.get("read_only") and not node.get("artifacts"):
        cure = "set cluster_prefix to a folder that root can write, such as /opt/cluster"
        yield Problem(host, "prefix", f"{path} is on a read-only file system", cure, _VARIABLE)


def for_builds(host: str, node: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return what decides which node builds: whether it has the room (builds), and the names of its artifacts (trees).

    Args:
        host: its inventory name.
        node: its facts.
        limits: what to compare with. Where the user chose builders, other nodes do not build.
    """
    trees = sorted({str(its.get("name")) for its in node.get("artifacts") or [] if its.get("ok")})
    if limits.builders:
        return {"builds": host in limits.builders, "trees": trees}
    return {"builds": not any(_disk(host, node, limits, builder=True)), "trees": trees}


def _disk(host: str, node: Mapping[str, Any], limits: Limits, *, builder: bool) -> Iterable[Problem]:
    wanted = dict(limits.min_disk_bytes)
    if builder:
        for path, size in limits.min_builder_disk_bytes.items():
            wanted[path] = max(size, wanted.get(path, 0))
    free = {entry["path"]: entry["free_bytes"] for entry in node.get("disk") or []}
    for path, size in wanted.items():
        if path in free and free[path] < size:
            purpose = " to build on it" if builder and path in limits.min_builder_disk_bytes else ""
            yield Problem(
                host,
                "disk",
                f"{path} has {_size(free[path])} free, {_size(size)} are needed{purpose}",
                f"free some space there or grow the file system under {path}",
            )


def builders(platforms: Mapping[str, str], chosen: Sequence[str]) -> set[str]:
    """Return the hosts that may have to compile: the chosen ones, or the first host of each platform.

    Args:
        platforms: host name to platform id, in the inventory's order.
        chosen: names that the user gives.
    """
    if chosen:
        return set(chosen)
    first: dict[str, str] = {}
    for host, platform in platforms.items():
        first.setdefault(platform, host)
    return set(first.values())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
