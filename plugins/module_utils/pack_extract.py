# SPDX-License-Identifier: Apache-2.0
"""Extract a pack of an artifact into a folder, with the fastest programs and libraries that the node has."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import threading
import zlib
from contextlib import suppress
from typing import Any, BinaryIO, Callable, Iterable, Iterator, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import zstd_library

_CHUNK = 1 << 20
_F_SETPIPE_SZ = 1031  # fcntl(2); Python names it from 3.10 on
_GZIP_WINDOW = 31  # for zlib: a gzip header, and the checksum at the end is verified


def extract(packed: Any, compression: str, folder: str) -> str:
    """Extract a pack, and return the error, or ''.

    Args:
        packed: the pack's bytes.
        compression: ``gz`` or ``zst``.
        folder: where the content goes.
    """
    tar = shutil.which("tar")
    argv = [tar, "-x", "-f", "-", "--no-same-owner", "--preserve-permissions", "-C", folder] if tar else []
    if tar and compression == "gz":
        return _feed(argv, packed, _inflated)
    if tar and zstd_library.library():
        return _feed(argv, packed, zstd_library.decompressed)
    return _squeezed_into(argv, packed, compression, folder)


def _inflated(source: BinaryIO) -> "Iterator[bytes]":
    """Yield the content of a ``.gz``; Python's zlib takes 60 % of gzip's time."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    for chunk in iter(lambda: source.read(_CHUNK), b""):
        yield inflater.decompress(chunk)
    if not inflater.eof or inflater.unused_data:
        raise EOFError("the pack is cut off")


def _pass_on(packed: Any, sink: Any) -> None:
    """Write a pack as it is into a program, which may end early."""
    with suppress(BrokenPipeError), sink:
        shutil.copyfileobj(packed, sink, _CHUNK)


def _feed(argv: List[str], packed: Any, decompressed: "Callable[[Any], Iterable[Any]]") -> str:
    """Write a pack's content to a program's standard input; return the error, or ''."""
    complaints: List[str] = []
    source, sink = os.pipe()
    with suppress(OSError):  # fewer and larger portions; the kernel limits the size of a pipe
        fcntl.fcntl(sink, _F_SETPIPE_SZ, _CHUNK)

    def pump() -> None:
        try:
            with open(sink, "wb", buffering=0) as out:  # noqa: PTH123 - a descriptor
                for portion in decompressed(packed):
                    rest = memoryview(portion)
                    while rest:
                        rest = rest[out.write(rest) :]
        except BrokenPipeError:
            pass  # the program that ended early says why
        except (OSError, EOFError, zlib.error, zstd_library.ZstdError) as error:
            complaints.append(str(error))

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        done = subprocess.run(argv, stdin=source, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(source)
        thread.join()
    if done.returncode:
        return done.stderr.decode(errors="replace").strip() or f"tar ended with {done.returncode}"
    return " ".join(complaints)


def _squeezed_into(argv: List[str], packed: Any, compression: str, folder: str) -> str:
    squeeze = ["zstd", "-d", "-q", "-c"] if compression == "zst" else ["gzip", "-d", "-c"]
    with subprocess.Popen(squeeze, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as source:
        pump = threading.Thread(target=_pass_on, args=(packed, source.stdin))
        pump.start()
        if argv:
            done = subprocess.run(argv, stdin=source.stdout, stderr=subprocess.PIPE, check=False)
            complaint = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        else:
            complaint = _extract_by_python(source, folder)
        if source.stdout:
            source.stdout.close()
        pump.join()
    return complaint or (f"{squeeze[0]} ended with {source.returncode}" if source.returncode else "")


def _extract_by_python(source: "subprocess.Popen[bytes]", folder: str) -> str:
    with tarfile.open(fileobj=source.stdout, mode="r|") as bundle:
        if hasattr(tarfile, "fully_trusted_filter"):  # tar_filter would take modes away that the manifest names
            bundle.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        bundle.extractall(folder)  # noqa: S202 - our own pack, whose sha256 was just verified
    return ""
