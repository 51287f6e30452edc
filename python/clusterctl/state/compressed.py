"""Compress what the state folder keeps, and decompress it up to a bound."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_OPTIONS: dict[int, int] = {zstd.CompressionParameter.compression_level: 3, zstd.CompressionParameter.checksum_flag: 1}


def compress(data: bytes) -> bytes:
    """Return data as one frame of zstd, with a checksum against flipped bits."""
    return zstd.compress(data, options=_OPTIONS)


def decompress(data: bytes, most: int) -> bytes:
    """Return what a frame of zstd holds.

    Args:
        data: the frame.
        most: the most bytes that it may hold.

    Raises:
        ValueError: it is damaged, ends too early, or holds more.
    """
    decompressor = zstd.ZstdDecompressor()
    try:
        found: bytes = decompressor.decompress(data, most + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    if len(found) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    if not decompressor.eof:
        raise ValueError("it ends too early")
    return found
