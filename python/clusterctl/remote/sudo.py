"""Run a command on a node through sudo, with or without a password: the words, and what goes to stdin first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.hosts import Host

# sudo resets the environment, so PATH and LD_LIBRARY_PATH of the session become arguments. The script is constant; its
# parameters come by position.
_THROUGH_SUDO = 'user=$1; shift; exec sudo -n -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"'
# The same with a password, the first line of stdin. A wrong one is tried once, or sudo would take our program for the
# next two. Where sudo asks for none, that line is read away. A builtin writes it, so it is in no process's arguments.
_THROUGH_SUDO_ASKING = """\
user=$1; shift; IFS= read -r word
if sudo -k -n -u "$user" true 2>/dev/null; then
  exec sudo -n -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"
fi
printf '%s\\n' "$word" | sudo -k -S -p '' -u "$user" true || exit $?
{ printf '%s\\n' "$word"; cat; } | sudo -k -S -p '' -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"
"""


def as_become_user(host: Host, remote: Sequence[str]) -> tuple[list[str], bytes]:
    """Return the command with the inventory's privileges, and the bytes that its stdin begins with.

    Through sudo, the command gets PATH and LD_LIBRARY_PATH of the session as two further arguments.
    """
    if not host.become or host.become_user == host.user:
        return list(remote), b""
    if host.sudo_password is None:
        return ["sh", "-c", _THROUGH_SUDO, "sh", host.become_user, *remote], b""
    first = host.sudo_password.encode() + b"\n"
    return ["sh", "-c", _THROUGH_SUDO_ASKING, "sh", host.become_user, *remote], first
