"""Compressed state is read up to a bound, and damage is an error."""

from __future__ import annotations

import pytest
from clusterctl.state import files

DATA = b"record " * 9


def test_what_is_compressed_comes_back() -> None:
    assert files.decompress(files.compress(DATA), len(DATA)) == DATA
    assert files.decompress(files.compress(b""), 0) == b""


@pytest.mark.parametrize(
    "frame", ["28b52ffd243f6d0000387265636f7264200100d5598c82b626b0", "28b52ffd203f6d0000387265636f7264200100d5598c"]
)
def test_what_earlier_releases_wrote_is_read(frame: str) -> None:
    assert files.decompress(bytes.fromhex(frame), 1 << 10) == DATA


def test_what_unpacks_to_more_than_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 62 bytes"):
        files.decompress(files.compress(DATA), len(DATA) - 1)
    bomb = files.zstd.compress(b"\0" * (1 << 26))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        files.decompress(bomb, 1000)


def test_damage_is_refused() -> None:
    frame = files.compress(DATA)
    flipped = bytearray(frame)
    flipped[-6] ^= 1
    for damaged in (b"", b"no frame", frame[:-1], bytes(flipped)):
        with pytest.raises(ValueError, match=r"."):
            files.decompress(damaged, 1 << 10)
