"""What the library packs the program's format unpacks, and the other way round; damage is told."""

from __future__ import annotations

import io
import random

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_pack as z
from clusterctl.state.files import zstd

pytestmark = pytest.mark.skipif(z.library() is None, reason="this machine has no libzstd.so.1")

NOISE = random.Random(7)  # noqa: S311 - any bytes will do
SAMPLES = [b"", b"x", b"word " * 1_000_000, NOISE.randbytes(3 << 20), b"y" * (1 << 20)]


def unpacked(data: bytes) -> bytes:
    return b"".join(bytes(portion) for portion in z.decompressed(io.BytesIO(data)))


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_what_others_pack_is_unpacked(data: bytes) -> None:
    assert unpacked(zstd.compress(data)) == data
    stream = io.BytesIO()
    with zstd.ZstdFile(stream, "w", level=3) as out:  # its header does not name the size
        out.write(data)
    assert unpacked(stream.getvalue()) == data


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_what_is_packed_others_unpack(data: bytes) -> None:
    out = io.BytesIO()
    compressor = z.Compressor(out.write, 3)
    for start in range(0, len(data), 700_000):
        compressor.write(data[start : start + 700_000])
    compressor.close()
    assert zstd.decompress(out.getvalue()) == data


def test_damage_is_told() -> None:
    packed = zstd.compress(SAMPLES[3])
    with pytest.raises(z.ZstdError, match="ends too early"):
        unpacked(packed[:-1])
    with pytest.raises(z.ZstdError, match="Unknown frame descriptor"):
        unpacked(b"no archive" + packed)
