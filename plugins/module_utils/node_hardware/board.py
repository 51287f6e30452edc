# SPDX-License-Identifier: Apache-2.0
"""The mainboard and its memory modules, with the serial numbers that stay with them.

The fields are those of the SMBIOS specification (DMTF DSP0134), type 17 for memory; the kernel shows them as
Documentation/ABI/testing/sysfs-firmware-dmi-entries says. Only root may read serial numbers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_ID = "/sys/class/dmi/id"
_ENTRIES = "/sys/firmware/dmi/entries"
_MEMORY = "17-"
_LEAST = 0x1B  # up to the part number, SMBIOS 2.3
_UNKNOWN = 0xFFFF
_IN_KIB = 0x8000
_EXTENDED = 0x7FFF
_NOTHING = frozenset({"", "none", "not specified", "unknown", "no dimm", "to be filled by o.e.m.", "00000000", "n/a"})


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the board, the firmware and each memory module."""
    words = {name: _word(tree.text(f"{_ID}/{name}")) for name in ("sys_vendor", "product_name", "bios_version")}
    model = " ".join(word for word in (words["sys_vendor"], words["product_name"]) if word)
    if model:
        answer.reading("board", "", "model", model)
    if words["bios_version"]:
        answer.reading("board", "", "firmware", words["bios_version"])
    for place in ("product", "board", "chassis"):
        serial = _word(tree.text(f"{_ID}/{place}_serial"))
        if serial:
            answer.part("board", place, model, serial, words["bios_version"])
    slots = [name for name in tree.names(_ENTRIES) if name.startswith(_MEMORY)]
    filled = 0
    for name in slots:
        data = tree.data(f"{_ENTRIES}/{name}/raw")
        module = memory_module(data) if data else None
        if module:
            filled += 1
            place, model_of, serial, size = module
            answer.part("dimm", place, f"{model_of} {size >> 20} GiB".strip(), serial)
    if filled:
        answer.reading("memory", "", "memory modules", filled)
    closed = [path for path in tree.problems if path.startswith((_ID, _ENTRIES))]
    if closed:
        answer.unseen("serial numbers of board and memory", "only root may read them")
        for path in closed:
            del tree.problems[path]


def memory_module(data: bytes) -> tuple[str, str, str, int] | None:
    """Return place, model, serial number and size in KiB of a structure of type 17, None for an empty slot."""
    if len(data) < _LEAST or data[0] != 17 or not _LEAST <= data[1] <= len(data):  # noqa: PLR2004 - the type's number
        return None
    (size,) = struct.unpack_from("<H", data, 0x0C)
    if size in {0, _UNKNOWN}:
        return None
    if size == _EXTENDED and data[1] >= 0x20:  # noqa: PLR2004 - SMBIOS 2.7
        kib = (struct.unpack_from("<I", data, 0x1C)[0] & 0x7FFFFFFF) << 10
    else:
        kib = size & 0x7FFF if size & _IN_KIB else size << 10
    strings = [text.decode("latin-1").strip() for text in data[data[1] :].split(b"\0")]

    def named(offset: int) -> str:
        number = data[offset]
        return _word(strings[number - 1]) if 0 < number <= len(strings) else ""

    place = " ".join(word for word in (named(0x11), named(0x10)) if word)
    model = " ".join(word for word in (named(0x17), named(0x1A)) if word)
    return place, model, named(0x18), kib


def _word(text: str | None) -> str:
    word = " ".join((text or "").split())
    return "" if word.lower() in _NOTHING else word
