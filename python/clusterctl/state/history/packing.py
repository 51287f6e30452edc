"""Columns of the database: records, keys and figures, compressed and with a checksum against flipped bits."""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from typing import TYPE_CHECKING, Any

from clusterctl.model import results
from clusterctl.state import compressed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.results import ValidationRecord

_CHECKSUM = 4  # bytes
# A stored record leaves out the samples (medians and intervals stay), the trends, and matrices of more links than 200
# nodes have. The folder of the run holds all of them as long as it is kept.
_MOST_LINKS = 20_000
_MOST_BYTES = 1 << 30  # unpacked
_WITHOUT: Any = {"trends": True, "checks": {"__all__": {"figures": {"__all__": {"samples"}}}}}


class BrokenError(ValueError):
    """A column is damaged."""


def pack_record(record: ValidationRecord) -> bytes:
    """Return a record as one compressed column."""
    if any(len(matrix.value) > _MOST_LINKS for check in record.checks for matrix in check.matrices):
        slim = [
            check.model_copy(update={"matrices": tuple(m for m in check.matrices if len(m.value) <= _MOST_LINKS)})
            for check in record.checks
        ]
        record = record.model_copy(update={"checks": tuple(slim)})
    return compressed.compress(record.model_dump_json(exclude=_WITHOUT).encode())


def unpack_record(data: bytes, place: str) -> ValidationRecord:
    """Return the record of a column.

    Raises:
        ConfigError: the record is damaged.
        BrokenError: its compressed bytes are damaged.
    """
    return results.load(_decompress(data), place)


def pack_keys(keys: Sequence[str]) -> bytes:
    """Return a layout's keys as one compressed column."""
    return compressed.compress(json.dumps(list(keys)).encode())


def unpack_keys(data: bytes) -> dict[str, int]:
    """Return the place of each key.

    Raises:
        BrokenError: the column is damaged.
    """
    try:
        return {str(key): place for place, key in enumerate(json.loads(_decompress(data)))}
    except ValueError as error:
        raise BrokenError(str(error)) from None


def pack_figures(values: Sequence[float]) -> bytes:
    """Return values as 8 bytes each, least significant first, and a checksum."""
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    return data + zlib.crc32(data).to_bytes(_CHECKSUM, "little")


def unpack_figures(data: bytes) -> array[float]:
    """Return the values of a column.

    Raises:
        BrokenError: the column is damaged.
    """
    body, check = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if len(body) % 8 or zlib.crc32(body).to_bytes(_CHECKSUM, "little") != check:
        raise BrokenError("the checksum of figures is wrong")
    values = array("d", body)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _decompress(data: bytes) -> bytes:
    try:
        return compressed.decompress(data, _MOST_BYTES)
    except ValueError as error:
        raise BrokenError(str(error)) from None
