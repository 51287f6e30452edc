# SPDX-License-Identifier: Apache-2.0
"""The lines by which nodes trust an authority: known_hosts, authorized_keys and the settings of ssh and sshd.

Reads and writes no files.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from .. import config_line, ip_address

COMMENT = "clusterctl-ca"  # behind the authority's key in both blocks
SSH_PORT = 22
REVOKED = "/etc/ssh/clusterctl.krl"
HOST_CERTIFICATE = "/etc/ssh/clusterctl-host-cert.pub"
_PATTERN = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9*?._:-]{0,252}")


def principal(authority: str) -> str:
    """Return the principal of the cluster, which every user certificate has: it follows from the authority's key."""
    return f"clusterctl-{hashlib.sha256(authority.encode()).hexdigest()[:16]}"


def is_pattern(word: str) -> bool:
    """Tell whether a word is one pattern of host names or addresses."""
    return bool(_PATTERN.fullmatch(word))


def patterns(members: Sequence[Mapping[str, Any]], names: Iterable[str]) -> List[str]:
    """Return patterns that fit the members and the nodes that are likely to join later.

    A number at the end of a name's first label becomes ``*``, and so does the last part of an address. A new node that
    fits leaves the files of the others as they are.
    """
    words = [str(word) for member in members for word in (member["name"], *member.get("aliases", ()))]
    found = [_name_pattern(word) for word in (*words, *names)]
    found += [_address_pattern(str(member["address"])) for member in members]
    return sorted(dict.fromkeys(found))


def _name_pattern(name: str) -> str:
    if ip_address.is_address(name):
        return _address_pattern(name)
    label, dot, domain = name.partition(".")
    stem = label.rstrip("0123456789")
    return f"{stem}*{dot}{domain}" if stem and stem != label else name


def _address_pattern(address: str) -> str:
    mark = ":" if ":" in address else "."
    return f"{address.rpartition(mark)[0]}{mark}*"


def authorized(authority: str, key_options: Sequence[str]) -> str:
    """Return the line of authorized_keys that accepts every user certificate of the cluster, for this account alone.

    Raises:
        LineError: the key would leave its line.
    """
    words = dict.fromkeys(["cert-authority", "restrict", "pty", *key_options, f'principals="{principal(authority)}"'])
    return f"{','.join(words)} {_key(authority)} {COMMENT}\n"


def known(authority: str, hosts: Sequence[str], ports: Iterable[int]) -> str:
    """Return the line of known_hosts that accepts every host certificate of the cluster.

    Raises:
        LineError: a name or the key would leave its line.
    """
    others = [f"[{word}]:*" for word in hosts] if any(port != SSH_PORT for port in ports) else []
    names = [_name(word) for word in (*hosts, *others)]
    return f"@cert-authority {','.join(names)} {_key(authority)} {COMMENT}\n"


def _key(authority: str) -> str:
    return config_line.checked(authority, "The key of the authority", refused='"\\')


def _name(word: str) -> str:
    return config_line.checked(word, "A name in a file of ssh", refused='"\\ ,')


def of_authority(block: Iterable[str]) -> str:
    """Return the lines of a block that trust an authority."""
    return "".join(f"{line}\n" for line in block if line.startswith(("@cert-authority ", "cert-authority,")))


def client_config(
    members: Sequence[Mapping[str, Any]], user: str, hosts: Sequence[str], settings: Sequence[str]
) -> str:
    """Return the ssh client's drop-in, which names no node: only those whose sshd has another port.

    Args:
        members: the cluster's hosts.
        user: whose logins the mesh is for.
        hosts: :func:`patterns`.
        settings: options for logins to the cluster's hosts.

    Raises:
        LineError: a name would leave its line.
    """
    ports: Dict[int, List[str]] = {}
    for member in members:
        port = int(member.get("port", SSH_PORT))
        if port != SSH_PORT:
            ports.setdefault(port, []).extend(names_of(member))
    result = [
        "# Written by clusterctl (role ssh_mesh); changes are overwritten.",
        f"# Only user {_name(user)} is affected.",
        "",
    ]
    for port, names in sorted(ports.items()):
        result += [_match(user, names), f"    Port {port}"]
    result += [
        _match(user, hosts),
        *(f"    {line}" for line in settings),
        f"    RevokedHostKeys {REVOKED}",
    ]
    return "\n".join(result) + "\n"


def names_of(member: Mapping[str, Any]) -> List[str]:
    """Return the names, aliases and the address by which the nodes know a member."""
    return list(dict.fromkeys([str(member["name"]), *map(str, member.get("aliases", ())), str(member["address"])]))


def _match(user: str, words: Sequence[str]) -> str:
    return f"Match localuser {user} originalhost {','.join(map(_name, words))}"


def sshd_config(user: str) -> str:
    """Return the settings of sshd: its certificate, and the keys that it refuses to a user.

    An empty user means all of them, for a place where a Match would swallow the lines behind it.
    """
    match = f"Match User {_name(user)}\n    " if user else ""
    return f"HostCertificate {HOST_CERTIFICATE}\n{match}RevokedKeys {REVOKED}\n"
