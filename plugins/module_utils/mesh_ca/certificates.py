# SPDX-License-Identifier: Apache-2.0
"""Read an OpenSSH certificate and decide whether it has to be signed anew. Reads and writes no files."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from .. import config_line, ip_address

# The lines by which nodes trust an authority: known_hosts, authorized_keys and the settings of ssh and sshd.
#
# Reads and writes no files.

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
    """Return the names, aliases and the address by which the nodes know a member.

    They are in lower case: ssh lowers the name that it is given, and compares it with a certificate's names with case.
    """
    words = (member["name"], *member.get("aliases", ()), member["address"])
    return list(dict.fromkeys(str(word).lower() for word in words))


def _match(user: str, words: Sequence[str]) -> str:
    return f"Match localuser {user} originalhost {','.join(map(_name, words))}"


def sshd_config(user: str) -> str:
    """Return the settings of sshd: its certificate, and the keys that it refuses to a user.

    An empty user means all of them, for a place where a Match would swallow the lines behind it.
    """
    match = f"Match User {_name(user)}\n    " if user else ""
    return f"HostCertificate {HOST_CERTIFICATE}\n{match}RevokedKeys {REVOKED}\n"


# A certificate with less of its life left than this part is signed anew.
_RENEWED_BELOW = 3
ABOUT_TO_EXPIRE = "about to expire"  # the one reason that can wait


class CertificateError(Exception):
    """A text is not an OpenSSH certificate; the message is one sentence."""


class Certificate(NamedTuple):
    """What a certificate says; times are seconds since 1970."""

    kind: str  # user or host
    key: str  # type and key, as in a .pub file
    serial: int
    key_id: str
    principals: Tuple[str, ...]
    valid_after: int
    valid_before: int
    source_addresses: Tuple[str, ...]
    permits: Tuple[str, ...]
    authority: str  # type and key of the signer


class Wanted(NamedTuple):
    """What a node's certificate should say."""

    kind: str
    key: str
    key_id: str
    principals: Tuple[str, ...]
    source_addresses: Tuple[str, ...] = ()  # empty: from everywhere
    permits: Tuple[str, ...] = ()


def parse(text: str) -> Certificate:
    """Return what the content of a ``-cert.pub`` file says; its signature is for sshd to judge.

    Raises:
        CertificateError: it is not a certificate of a known type.
    """
    # ansible-core brings the package to the controller; nodes, which import this module too, may lack it
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    try:
        found = serialization.load_ssh_public_identity(" ".join(text.split()[:2]).encode())
        if not isinstance(found, serialization.SSHCertificate):
            raise CertificateError("The text is the key of an OpenSSH certificate alone.")
        addresses = found.critical_options.get(b"source-address", b"").decode()
        return Certificate(
            kind=found.type.name.lower(),
            key=found.public_key().public_bytes(*form).decode(),
            serial=found.serial,
            key_id=found.key_id.decode("utf-8", "replace"),
            principals=tuple(name.decode("utf-8", "replace") for name in found.valid_principals),
            valid_after=found.valid_after,
            valid_before=found.valid_before,
            source_addresses=tuple(word for word in addresses.split(",") if word),
            permits=tuple(sorted(name.decode("utf-8", "replace") for name in found.extensions)),
            authority=found.signature_key().public_bytes(*form).decode(),
        )
    except (ValueError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"The text is not an OpenSSH certificate ({str(error)[:100]}).") from None


def is_due(valid_after: int, valid_before: int, now: int) -> bool:
    """Return whether less than a third of a certificate's life is left."""
    return (valid_before - now) * _RENEWED_BELOW < valid_before - valid_after


def why_anew(present: str, wanted: Wanted, authority: str, now: int) -> str:
    """Return why a certificate has to be signed; '' where the present one serves.

    Args:
        present: the node's certificate, '' where it has none. The node may say anything; it harms itself alone.
        wanted: what the certificate should say.
        authority: type and key of the authority.
        now: seconds since 1970.
    """
    try:
        found = parse(present)
    except CertificateError:
        return "damaged" if present.strip() else "missing"
    if found.authority != authority:
        return "signed by another authority"
    if found.key != wanted.key or found.kind != wanted.kind:
        return "of another key"
    said = (set(found.principals), set(found.source_addresses), set(found.permits), found.key_id)
    if said != (set(wanted.principals), set(wanted.source_addresses), set(wanted.permits), wanted.key_id):
        return "of other names or addresses"
    due = ABOUT_TO_EXPIRE if is_due(found.valid_after, found.valid_before, now) else ""
    return "expired" if found.valid_before <= now else due
