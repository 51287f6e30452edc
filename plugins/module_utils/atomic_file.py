# SPDX-License-Identifier: Apache-2.0
"""Write one file of a node so that a reader sees the old content or the new one, never a part."""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH104, PTH108

from __future__ import annotations

import os
import tempfile
from contextlib import suppress


def write(path: "str | os.PathLike[str]", data: "str | bytes", mode: int = 0o644) -> None:
    """Replace a file by a rename; its folder must exist. A power cut leaves the old content or the new one.

    Raises:
        OSError: the file cannot be written; the old one is still there.
    """
    folder, name = os.path.split(path)
    handle, staged = tempfile.mkstemp(prefix=f".{name}.clusterctl-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise
