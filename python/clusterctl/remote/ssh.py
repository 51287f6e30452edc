"""The one place that builds an ssh command line; everything in it is a token, nothing a shell string.

It also keeps and ends the connections that such commands share.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from clusterctl.support import held_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host


def arguments(host: Host, *, control_dir: Path | None = None, connect_timeout_s: int = 10) -> list[str]:
    """Return the argv up to and including the destination.

    Strictness of host keys is the inventory's and the user's ssh configuration's; nothing here relaxes it.

    Args:
        host: the host to reach.
        control_dir: folder (short path, mode 0700) of a shared connection that lives for a minute; None for a
            connection of its own.
        connect_timeout_s: seconds until an address that does not answer is given up.
    """
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_timeout_s}"]
    if control_dir is not None:
        argv += ["-o", "ControlMaster=auto", "-o", "ControlPersist=60s", "-o", f"ControlPath={control_dir}/%C"]
    return [*argv, *host.login_words, "--", host.address]


def command(
    host: Host,
    remote: Sequence[str],
    *,
    as_user: str | None = None,
    control_dir: Path | None = None,
    connect_timeout_s: int = 10,
) -> list[str]:
    """Return the whole argv that runs ``remote`` on the host.

    ssh hands the remote shell one string; each token is quoted here so that it arrives as the token it was.

    Args:
        host: where to run it.
        remote: argv on the node.
        as_user: run it through ``sudo -n`` as this user; None runs it as the login user.
        control_dir: see :func:`arguments`.
        connect_timeout_s: see :func:`arguments`.
    """
    argv = as_another(host, remote, as_user)
    return [*arguments(host, control_dir=control_dir, connect_timeout_s=connect_timeout_s), shlex.join(argv)]


def has_bastion(host: Host) -> bool:
    """Return whether ssh logs in to another machine first, by the inventory or by the user's configuration."""
    return _has_bastion((*host.login_words, "--", host.address))


@functools.cache
def _has_bastion(destination: tuple[str, ...]) -> bool:
    asking = ["ssh", "-G", *destination]
    try:
        asked = subprocess.run(
            asking, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        return False
    settings = dict(line.partition(" ")[::2] for line in asked.stdout.split("\n"))
    return any(settings.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))


def as_another(host: Host, remote: Sequence[str], user: str | None) -> list[str]:
    """Return an argv that runs ``remote`` through ``sudo -n`` as a user; None and the login user need no sudo."""
    if user is None or user == host.user:
        return list(remote)
    return ["sudo", "-n", "-H", "-u", user, "--", *remote]


@contextlib.contextmanager
def control_folder() -> Iterator[Path]:
    """Yield a folder (mode 0700) for shared ssh connections, and close them all afterwards.

    A unix socket's path ends at 104 bytes on macOS, so it cannot lie in the state folder.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if runtime and os.access(runtime, os.W_OK) and len(runtime) < 25 else held_files.short_base()  # noqa: PLR2004
    with held_files.folder(base) as folder:
        try:
            yield folder
        finally:
            close_connections(folder)


def close_connections(folder: Path) -> None:
    """Ask every ssh master whose socket lies in ``folder`` to end."""
    asked = [
        subprocess.Popen(
            ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "--", "any"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for socket in folder.glob("*")
        if socket.is_socket()
    ]
    for process in asked:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
