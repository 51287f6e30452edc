# SPDX-License-Identifier: Apache-2.0
"""Read the dynamic loader's cache, /etc/ld.so.cache."""

from __future__ import annotations

import os
import struct

LIBRARY_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48  # bytes of struct cache_file_new (glibc, sysdeps/generic/dl-cache.h)
_CACHE_ENTRY = "=iIIIQ"  # struct file_entry_new: flags, key, value, osversion, hwcap


def content() -> bytes:
    """Return the bytes of the cache, b'' if ldconfig never ran here."""
    try:
        with open(LIBRARY_CACHE, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return b""


def in_library_cache(name: bytes) -> bool:
    """Tell whether the loader's cache lists a library."""
    try:
        return name + b"\0" in content()
    except OSError:
        return False


def read_library_cache(data: bytes, soname: str) -> list[str]:
    """Return the paths of a library in the bytes of an ld.so.cache, in the loader's order.

    The format is "glibc-ld.so.cache1.1", also behind a block of the older format. Entries for special processors are
    left out. Entries of another architecture stay in; the caller looks at their files.
    """
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return []
    body = memoryview(data)[start:]
    wanted = soname.encode() + b"\0"
    found = []
    try:
        (count,) = struct.unpack_from("=I", body, len(_CACHE_MAGIC))
        end = _CACHE_HEADER + count * struct.calcsize(_CACHE_ENTRY)
        for _unused, key, value, _unused, hwcap in struct.iter_unpack(_CACHE_ENTRY, body[_CACHE_HEADER:end]):
            if not hwcap and data.startswith(wanted, start + key):
                found.append(os.fsdecode(data[start + value : data.index(b"\0", start + value)]))
    except (struct.error, ValueError):  # cut off: the loader takes no such cache
        return []
    return found
