# SPDX-License-Identifier: Apache-2.0
"""Read a file that the controller pushed: once, through no link, and with the digest of what was really read.

The file lies in a folder that others use too, and belongs to the login user, who may change it at any time. A digest
that root works out first says nothing about a second reading.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import closing

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError

_CHUNK = 1 << 20


class PushedFile:
    """A pushed file, open for one reading."""

    def __init__(self, path: str) -> None:
        """Open a regular file.

        Raises:
            ArtifactError: a link, or another kind of file, is in its place.
            OSError: it cannot be opened.
        """
        self._digest = hashlib.sha256()
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe could wait for ever
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise ArtifactError(f"{path} should be a pushed file, but it is a link; remove it and run again.") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise ArtifactError(f"{path} should be a pushed file, but it is not a regular file; remove it.")
        self._stream = os.fdopen(handle, "rb", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def read(self, size: int = -1) -> bytes:
        """Read on, as a stream does."""
        data = self._stream.read(size) or b""
        self._digest.update(data)
        return data

    def is_whole(self, sha256: str) -> bool:
        """Read what is left, and tell whether everything that was read has this digest."""
        while self.read(_CHUNK):
            pass
        return self._digest.hexdigest() == sha256


def take(path: str, sha256: str, target: "str | os.PathLike[str]") -> None:
    """Copy a pushed file to a new file of a folder that only this user can write to.

    Raises:
        ArtifactError: the file is not regular, or its content is not what was pushed.
        OSError: it cannot be read, or the target cannot be written.
    """
    with closing(PushedFile(path)) as pushed, open(target, "xb") as out:  # noqa: PTH123 - exclusive: through no link
        out.writelines(iter(lambda: pushed.read(_CHUNK), b""))
        if not pushed.is_whole(sha256):
            raise ArtifactError(f"{path} is not what the controller pushed; run again.")
