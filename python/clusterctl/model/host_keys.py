"""Host keys of ssh: fingerprints, the keys on a cloud's console, and the lines of a known_hosts file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_SSH_PORT = 22
_TYPE = r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+"
_KEY = re.compile(rf"(?P<type>{_TYPE})[ \t]+(?P<blob>AAAA[A-Za-z0-9+/]+={{0,3}})")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}(?![A-Za-z0-9+/])")
# cloud-init writes both blocks to the console. Clouds put a word such as "ec2: " before each line.
_BEGIN = re.compile(r"-----BEGIN SSH HOST KEY (FINGERPRINTS|KEYS)-----")
_END = re.compile(r"-----END SSH HOST KEY (FINGERPRINTS|KEYS)-----")


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type, and the key itself in base64."""

    type: str
    blob: str

    def __str__(self) -> str:
        """Return the key as files of ssh hold it."""
        return f"{self.type} {self.blob}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ssh-keygen -l writes it."""
        digest = hashlib.sha256(base64.b64decode(self.blob + "=" * (-len(self.blob) % 4))).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def found_in(text: str) -> HostKey | None:
    """Return the first key in a text, such as a line of a .pub file; None without one."""
    match = _KEY.search(text)
    if match is None:
        return None
    key = HostKey(match["type"], match["blob"])
    try:
        return key if key.fingerprint else None
    except (binascii.Error, ValueError):
        return None


def fingerprint_of(word: str) -> str | None:
    """Return the fingerprint that a user gives, as ``SHA256:…`` or by the key itself; None where it is neither."""
    text = word.strip()
    if _FINGERPRINT.fullmatch(text.rstrip("=")):
        return text.rstrip("=")
    key = found_in(text)
    return key.fingerprint if key and text.startswith(key.type) else None


def on_console(text: str) -> frozenset[str]:
    """Return the fingerprints of the host keys that cloud-init wrote to a machine's console.

    A machine that started more than once has written several blocks. The last whole block of each kind counts.
    """
    blocks: dict[str, list[str]] = {}
    kind, lines = "", list[str]()
    for line in text.split("\n"):
        if begin := _BEGIN.search(line):
            kind, lines = begin[1], []
        elif kind and (end := _END.search(line)) and end[1] == kind:
            blocks[kind] = lines
            kind = ""
        elif kind:
            lines.append(line)
    found = {word for line in blocks.get("FINGERPRINTS", ()) for word in _FINGERPRINT.findall(line)}
    keys = (found_in(line) for line in blocks.get("KEYS", ()))
    return frozenset(found | {key.fingerprint for key in keys if key})


# --- known_hosts -----------------------------------------------------------------------------------------------------


def place(name: str, port: int = _SSH_PORT) -> str:
    """Return a host as known_hosts names it: the name, or ``[name]:port`` for another port than 22."""
    return name if port == _SSH_PORT else f"[{name}]:{port}"


class KnownHosts:
    """The keys of a known_hosts file by host, for many questions; patterns and revoked keys are passed over."""

    def __init__(self, text: str, most_hashed: int) -> None:
        """Read the lines; of more than ``most_hashed`` hashed ones, each of which costs every question, none counts."""
        self._plain: dict[str, list[HostKey]] = {}
        self._hashed: list[tuple[bytes, bytes, HostKey]] = []
        for hosts, key, is_hashed in filter(None, map(_parsed, _lines_of(text))):
            if is_hashed and (parts := _salt_and_digest(hosts)):
                self._hashed.append((*parts, key))
            for word in () if is_hashed else hosts.lower().split(","):
                self._plain.setdefault(word, []).append(key)
        if len(self._hashed) > most_hashed:
            self._hashed.clear()

    def of(self, name: str) -> list[HostKey]:
        """Return the keys of a host, as :func:`place` names it."""
        wanted = name.lower()
        word = wanted.encode()
        hashed = [key for salt, digest, key in self._hashed if hmac.digest(salt, word, "sha1") == digest]
        return [*self._plain.get(wanted, ()), *hashed]

    @property
    def keys(self) -> list[HostKey]:
        """The keys of all hosts that are not hashed."""
        return [key for its in self._plain.values() for key in its]


def known_keys(text: str, names: Collection[str]) -> tuple[HostKey, ...]:
    """Return the keys that a known_hosts file has for a host, also in hashed lines."""
    found = (_parsed(line) for line in _lines_of(text))
    return tuple(dict.fromkeys(key for hosts, key, _ in filter(None, found) if _split(hosts, names)[0]))


def with_keys(text: str, names: Sequence[str], keys: Sequence[HostKey]) -> str:
    """Return a known_hosts file in which a host has these keys and no others.

    Lines of other hosts stay as they are, and so do patterns, certificate authorities and revoked keys. A line that
    names further hosts keeps them with their key. A hashed line stays hashed. A file without a line for the host gets
    one for its first name.
    """
    told: set[str] = set()
    lines = []
    for line in _lines_of(text):
        parsed = _parsed(line)
        ours, others = _split(parsed[0], names) if parsed else ([], [])
        if parsed is None or not ours:
            lines.append(line)
            continue
        if others:
            lines.append(" ".join([",".join(others), *line.split(None, 1)[1:]]))
        fresh = [word for word in ours if word not in told]
        told.update(fresh)
        if fresh:
            hosts = parsed[0] if parsed[2] else ",".join(fresh)
            lines += [f"{hosts} {key}" for key in dict.fromkeys(keys)]
    if names[0].lower() not in told:
        lines += [f"{names[0]} {key}" for key in dict.fromkeys(keys)]
    return "\n".join(lines) + "\n"


def _lines_of(text: str) -> list[str]:
    """Return the lines as ssh reads them; str.splitlines() also ends them at a form feed in a comment."""
    return text.removesuffix("\n").split("\n") if text else []


def _parsed(line: str) -> tuple[str, HostKey, bool] | None:
    """Return the hosts of a line, its key, and whether the hosts are hashed; None for a line of another kind."""
    words = line.split()
    if len(words) < 3 or words[0][0] in "#@":  # noqa: PLR2004 - hosts, type and key
        return None
    return words[0], HostKey(words[1], words[2]), words[0].startswith("|1|")


def _split(hosts: str, names: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which words of a line's hosts are ours, and the others; a hashed one is ours by the name behind it."""
    wanted = [name.lower() for name in names]
    if hosts.startswith("|1|"):
        return [name for name in wanted if _is_hash_of(hosts, name)][:1], []
    words = hosts.split(",")
    return [word.lower() for word in words if word.lower() in wanted], [w for w in words if w.lower() not in wanted]


def _is_hash_of(hashed: str, name: str) -> bool:
    """Whether ``|1|salt|hash`` is the HMAC-SHA1 of a name, as ssh-keygen -H makes it."""
    parts = _salt_and_digest(hashed)
    return parts is not None and hmac.compare_digest(hmac.digest(parts[0], name.encode(), "sha1"), parts[1])


def _salt_and_digest(hashed: str) -> tuple[bytes, bytes] | None:
    parts = hashed.split("|")
    if len(parts) != 4:  # noqa: PLR2004 - '', 1, salt, hash
        return None
    try:
        return base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return None
