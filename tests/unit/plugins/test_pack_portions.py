"""A part of a pack that is larger than one portion is read whole, where the portions share one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.module_utils import pack_extract

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b"".join(bytes([number]) * 1000 for number in range(100))


def in_one_buffer() -> Iterator[memoryview]:
    """Yield portions as libzstd does: each is valid until the next one is taken."""
    buffer = bytearray(1024)
    for place in range(0, len(CONTENT), len(buffer)):
        portion = CONTENT[place : place + len(buffer)]
        buffer[: len(portion)] = portion
        yield memoryview(buffer)[: len(portion)]


def test_a_manifest_of_many_portions_is_read_as_it_is() -> None:
    stream = pack_extract._Stream(in_one_buffer())  # noqa: SLF001 - the part that reads
    stream.limit = len(CONTENT)
    assert stream.read(len(CONTENT)) == CONTENT
