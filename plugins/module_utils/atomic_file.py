# SPDX-License-Identifier: Apache-2.0
"""Write one file of a node so that a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write(path: "str | os.PathLike[str]", data: "str | bytes", mode: int = 0o644) -> None:
    """Replace a file by a rename; its folder must exist. A power cut leaves the old content or the new one.

    Raises:
        OSError: the file cannot be written; the old one is still there.
    """
    target = Path(path)
    handle, staged = tempfile.mkstemp(prefix=f".{target.name}.clusterctl-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        Path(staged).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(staged).unlink()
        raise
