"""Entries of a shared cache: their names, the statement that a site signs, and the envelope around both; no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
NAMESPACE = "artifact@clusterctl"  # a signature of another namespace says nothing about an artifact
INDEX = "index.json"
LARGEST_ENVELOPE = 1 << 20  # bytes; the record of a pack has a few thousand
LARGEST_INDEX = 16 << 20

Kind = Literal["pack", "lock"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_DIGITS = 16
_MOST_SHOWN = 80  # characters of what a server said
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, order=True)
class EntryName:
    """What an entry is called: a pack by its artifact's folder, a lock of wheels by its file."""

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        """Refuse what could lead elsewhere as a path."""
        if self.kind not in {"pack", "lock"} or not _NAME.fullmatch(self.name):
            _refuse(f"{self.kind}/{self.name}")

    @staticmethod
    def parse(text: str) -> EntryName:
        kind, _, name = text.partition("/")
        return EntryName("pack" if kind == "pack" else "lock" if kind == "lock" else _refuse(text), name)

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def path(self) -> str:
        """The place of the envelope below the root of a shared cache."""
        return f"entries/{self.kind}/{self.name}.json"


def _refuse(text: str) -> Kind:
    raise ValueError(f"{text[:_MOST_SHOWN]!r} is not the name of an entry")


def blob_path(sha256: str) -> str:
    """Return the place of a content below the root of a shared cache."""
    return f"blobs/sha256/{sha256}"


def is_sha256(text: str) -> bool:
    """Whether a text is a sha256 in hex."""
    return _SHA256.fullmatch(text) is not None


@dataclass(frozen=True)
class Statement:
    """What a site signs: which content belongs to which name, and of a pack everything that shaped it."""

    entry: EntryName
    platform: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any] = field(default_factory=dict)  # of a pack: what the cache keeps beside it

    @property
    def key(self) -> str:
        """The key of a pack, and the digest of the question that a lock answers."""
        return str(self.record.get("key") or self.entry.name.rpartition("-")[2])

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed; equal statements give equal bytes."""
        fields = {
            "schema": SCHEMA,
            "kind": self.entry.kind,
            "name": self.entry.name,
            "key": self.key,
            "platform": self.platform,
            "sha256": self.sha256,
            "size": self.size,
            "record": dict(self.record),
        }
        return (json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()

    @staticmethod
    def parse(data: bytes) -> Statement:
        """Return the statement that was signed.

        Raises:
            ValueError: it is not a statement of this schema, or its parts contradict each other.
        """
        try:
            fields = _fields(data)
            entry = EntryName(fields["kind"], str(fields["name"]))
            found = Statement(entry, str(fields["platform"]), fields["sha256"], fields["size"], fields["record"])
            problem = _contradiction(found, fields["key"])
        except _UNREADABLE as error:
            raise ValueError(str(error) if isinstance(error, ValueError) else "a part of it is missing") from None
        if problem:
            raise ValueError(problem)
        return found


def statement_of_pack(record: Mapping[str, Any]) -> Statement:
    """Return the statement about a pack, from the record that the cache keeps beside it.

    Raises:
        ValueError: the record is not of a pack.
    """
    try:
        name = f"{record['name']}-{record['version']}-{record['key']}"
        platform = str(record["inputs"]["platform"])
        found = Statement(EntryName("pack", name), platform, record["sha256"], record["size"], dict(record))
        problem = _contradiction(found, record["key"])
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    if problem:
        raise ValueError(problem)
    return found


def statement_of_lock(name: str, content: bytes) -> Statement:
    """Return the statement about a lock of wheels.

    Raises:
        ValueError: the content is not a lock.
    """
    try:
        asked = json.loads(content)["asked"]
        platform = f"py{asked['python']}-{asked['machine']}-glibc{asked['glibc']}"
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    return Statement(EntryName("lock", name), platform, hashlib.sha256(content).hexdigest(), len(content))


def _contradiction(found: Statement, key: object) -> str:
    """Return why a statement cannot be right; '' where nothing is wrong."""
    problem = ""
    if not isinstance(found.sha256, str) or not is_sha256(found.sha256):
        problem = "its sha256 is not one"
    elif type(found.size) is not int or found.size < 0:
        problem = "its size is not a number of bytes"
    elif key != found.key:
        problem = "its key is not that of its record"
    elif found.entry.kind == "pack":
        problem = _contradiction_of_record(found)
    return problem


def _contradiction_of_record(found: Statement) -> str:
    record = found.record
    for is_right, problem in (
        (f"{record['name']}-{record['version']}-{record['key']}" == found.entry.name, "another artifact"),
        ((record["sha256"], record["size"]) == (found.sha256, found.size), "another pack"),
        (record["inputs"]["platform"] == found.platform, "another platform"),
        (key_of(record["inputs"]) == record["key"], "other settings than its key"),
    ):
        if not is_right:
            return f"its record belongs to {problem}"
    return ""


def key_of(inputs: Any) -> str:
    """Return the key of an artifact that was made of these inputs, as the collection makes it."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


@dataclass(frozen=True)
class Envelope:
    """A statement and its detached signature in one file, so that they change together."""

    statement: bytes
    signature: str

    def to_bytes(self) -> bytes:
        fields = {"schema": SCHEMA, "statement": self.statement.decode(), "signature": self.signature}
        return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
    def parse(data: bytes) -> Envelope:
        """Return the envelope of a file; the signature is empty where it has none."""
        try:
            fields = _fields(data)
            return Envelope(str(fields["statement"]).encode(), str(fields.get("signature") or ""))
        except _UNREADABLE as error:
            raise ValueError(str(error) if isinstance(error, ValueError) else "a part of it is missing") from None


def _fields(data: bytes) -> Any:
    """Return what a file of a shared cache says, if its schema is known."""
    fields = json.loads(data)
    if fields["schema"] != SCHEMA:
        raise ValueError(f"it has schema {str(fields['schema'])[:_MOST_SHOWN]!r}, and this clusterctl knows {SCHEMA}")
    return fields


def index_bytes(names: list[EntryName]) -> bytes:
    return (json.dumps({"schema": SCHEMA, "entries": [str(name) for name in sorted(names)]}, indent=1) + "\n").encode()


def index_names(data: bytes) -> list[EntryName]:
    try:
        return sorted({EntryName.parse(str(text)) for text in _fields(data)["entries"]})
    except _UNREADABLE as error:
        raise ValueError(str(error) if isinstance(error, ValueError) else "a part of it is missing") from None
