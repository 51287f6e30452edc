# SPDX-License-Identifier: Apache-2.0
"""Take a file that the controller pushed: through no link, and with the size and digest of what was pushed.

The file lies in a folder that others use too, and belongs to the login user, who may change it at any time. So its
bytes are copied to a folder of root's, and only that copy is used.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import BinaryIO

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError

_CHUNK = 1 << 20


def take(path: str, sha256: str, size: int, target: "str | os.PathLike[str]") -> None:
    """Copy a pushed file to a new file of a folder that only this user can write to.

    Args:
        path: the file, which another user can still change.
        sha256: digest of what the controller pushed.
        size: its bytes; not one more is read.
        target: the new file.

    Raises:
        ArtifactError: the file is not regular, or its content is not what was pushed.
        OSError: it cannot be read, or the target cannot be written.
    """
    total, left = hashlib.sha256(), size
    with _opened(path) as pushed, open(target, "xb", buffering=0) as out:  # noqa: PTH123 - exclusive: through no link
        if os.fstat(pushed.fileno()).st_size == size:
            while left > 0:
                data = pushed.read(min(left, _CHUNK))
                if not data:
                    break
                left -= len(data)
                total.update(data)
                _written(out, data)
        if left or total.hexdigest() != sha256:
            raise ArtifactError(f"{path} is not what the controller pushed; run again.")


def _written(out: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


def _opened(path: str) -> BinaryIO:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe could wait for ever
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ArtifactError(f"{path} should be a pushed file, but it is a link; remove it and run again.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ArtifactError(f"{path} should be a pushed file, but it is not a regular file; remove it.")
    return os.fdopen(handle, "rb", buffering=0)  # type: ignore[return-value]
