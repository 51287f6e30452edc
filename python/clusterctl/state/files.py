"""Atomic writes: a reader finds the old file or the new file, never half of one; and compressed contents."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import IO, TYPE_CHECKING, TypeVar

from clusterctl.state import paths
from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


PRIVATE = 0o600


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = PRIVATE) -> Iterator[IO[bytes]]:
    """Open a file that takes the name of ``path`` when the block ends, and is removed when the block fails.

    A killed process leaves it behind; the next one that replaces ``path`` removes it.

    Args:
        path: the file to replace; its folder exists.
        mode: the mode of the file; None leaves it to the umask.

    Raises:
        OSError: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    remove_staged(path.parent, path.name)
    descriptor = held_files.open_held(beside, 0o666 if mode is None else PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_atomically(
    path: Path, content: str | bytes | Iterable[str], mode: int | None = PRIVATE, errors: str = "strict"
) -> None:
    """Replace a file in one step.

    Args:
        path: the file to replace; its folder exists.
        content: text, bytes, or the parts of a text. Text is encoded as UTF-8.
        mode: the mode of the file; None leaves it to the umask.
        errors: how a character without an encoding is handled, as ``str.encode`` names it.

    Raises:
        OSError: the file cannot be written.
    """
    parts = (content,) if isinstance(content, str | bytes) else content
    with replacing(path, mode) as stream:
        for part in parts:
            stream.write(part if isinstance(part, bytes) else part.encode("utf-8", errors))


KnownT = TypeVar("KnownT")
_SCHEMA = 1  # of every file that known() reads


def known(path: Path, parse: Callable[[bytes], KnownT], without: KnownT) -> tuple[KnownT, tuple[str, ...]]:
    """Return what a file holds that is about to be replaced, and notes; ``without`` where it does not exist.

    A damaged file is moved aside, so nothing that it holds is lost; a note has its new name.

    Raises:
        ConfigError: it cannot be read or moved, or a newer clusterctl wrote it.
    """
    try:
        content = path.read_bytes()
        data = json.loads(content)
        version = data.get("schema_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > _SCHEMA:
            raise ConfigError(
                f"{path} has schema {version}, which this clusterctl does not know; use the newer one that wrote it."
            )
        return parse(content), ()
    except FileNotFoundError:
        return without, ()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}) and has to be changed; make it readable."
        ) from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    try:
        path.replace(aside)
    except OSError as error:
        raise ConfigError(f"{path} is damaged and cannot be moved to {aside.name}: {error.strerror}.") from None
    return without, (f"{path} was damaged. It is now {aside.name}, and a new one takes its place.",)


def keep(path: Path, content: str | bytes) -> None:
    """Replace a file of the state folder, whose own folder is made where it is missing.

    Raises:
        ConfigError: the state folder cannot be written.
        OSError: the disk is full.
    """
    paths.private_folder(path.parent)
    write_atomically(path, content)


def remove_staged(folder: Path, name: str = "") -> None:
    """Remove what killed processes wrote in place of a file and never put there; without a name, of all in a folder."""
    held_files.remove_abandoned(path for path in folder.glob(f".{name or '*'}.*") if path.suffix[1:].isdigit())


# --- Compress what the state folder keeps, and decompress it up to a bound --------------------------------------------

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
