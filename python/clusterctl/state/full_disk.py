"""Tell which folder of the controller is full or read-only, and what to do, from an error of the system."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from clusterctl.state import paths

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_LITTLE_BYTES = 1 << 20


def explained(error: BaseException) -> str:
    """Return a sentence where a full or read-only disk of the controller is the cause of an error; '' elsewhere."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {*_FULL, errno.EROFS}:
            return _sentence(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def _sentence(error: OSError) -> str:
    place = _place(error)
    if error.errno == errno.EROFS:
        return f"{place} is on a read-only file system of this machine; make it writable, or {_elsewhere(place)}."
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(place).free
        return (
            f"The disk of this machine is full: {place} has {free} bytes free; make room there, or {_elsewhere(place)}."
            " Then run the same command again."
        )
    return f"The disk of this machine is full at {place}; make room there and run the same command again."


def _place(error: OSError) -> Path:
    """Return the folder that is meant: the file's, or the fullest of those to which clusterctl writes."""
    if error.filename:
        place = Path(os.fsdecode(error.filename)).absolute()
        return next((folder for folder in (place, *place.parents) if folder.is_dir()), place)
    own = [paths.state_dir().value, paths.cache_dir().value, Path(tempfile.gettempdir())]
    there = [next(folder for folder in (place, *place.parents) if folder.is_dir()) for place in own]
    return next((folder for folder in there if shutil.disk_usage(folder).free < _LITTLE_BYTES), there[0])


def _elsewhere(place: Path) -> str:
    for variable, setting in (("XDG_STATE_HOME", paths.state_dir()), ("XDG_CACHE_HOME", paths.cache_dir())):
        if place == setting.value or setting.value in place.parents or place in setting.value.parents:
            return f"set {variable} to a folder of another disk"
    return "set TMPDIR to a folder of another disk"
