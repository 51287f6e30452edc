"""Serve the folder of a descriptor at a mount point as an NFS server does that squashes root: root is nobody there.

Each access happens with the caller's user and group, so the kernel refuses what it would refuse that user.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH115, PTH116, PTH208, PTH211

import ctypes
import os
import stat
import sys
import time
from typing import Any

import fusepy  # type: ignore[import-not-found,unused-ignore]  # Debian's python3-fusepy, on the node

NOBODY = 65534
ATTRIBUTES = ("atime", "ctime", "gid", "ino", "mode", "mtime", "nlink", "size", "uid", "blocks")
LIBC = ctypes.CDLL(None)


class SquashingHome(fusepy.Operations):  # type: ignore[misc,unused-ignore]
    """The operations of a folder that is the current one."""

    def __call__(self, op: str, path: str, *args: Any) -> Any:
        """Act as the caller; one at a time, since the identity is the process's."""
        uid, gid, _ = fusepy.fuse_get_context()
        LIBC.setfsgid(gid if uid else NOBODY)
        LIBC.setfsuid(uid or NOBODY)
        try:
            return getattr(self, op)(f".{path}", *args)
        except OSError as error:
            raise fusepy.FuseOSError(error.errno) from None
        finally:
            LIBC.setfsuid(0)
            LIBC.setfsgid(0)

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        found = os.fstat(fh) if fh is not None else os.lstat(path)
        return {f"st_{name}": getattr(found, f"st_{name}") for name in ATTRIBUTES}

    def access(self, path: str, mode: int) -> int:
        uid, gid, _ = fusepy.fuse_get_context()
        found = os.stat(path)
        shift = 6 if uid == found.st_uid else 3 if uid and gid == found.st_gid else 0
        if mode & ~(stat.S_IMODE(found.st_mode) >> shift):
            raise PermissionError(13, "Permission denied")
        return 0

    def opendir(self, path: str) -> int:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return 0

    def readdir(self, path: str, _fh: Any) -> list[str]:
        return [".", "..", *os.listdir(path)]

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags & ~os.O_CREAT)

    def create(self, path: str, mode: int, _info: Any = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: Any = None) -> None:
        os.truncate(path if fh is None else fh, length)

    def fsync(self, _path: str, _data: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, _path: str, fh: int) -> None:
        os.close(fh)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, f".{new}")

    def link(self, path: str, other: str) -> None:
        os.link(f".{other}", path)

    def symlink(self, path: str, target: str) -> None:
        os.symlink(target, path)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        keep = 0xFFFFFFFF
        os.chown(path, -1 if uid == keep else uid, -1 if gid == keep else gid, follow_symlinks=False)

    def utimens(self, path: str, times: Any = None) -> None:
        os.utime(path, times or (time.time(), time.time()), follow_symlinks=False)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(path)
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "flag", "frsize", "namemax")
        return {f"f_{name}": getattr(found, f"f_{name}") for name in names}


if __name__ == "__main__":
    os.fchdir(int(sys.argv[2]))
    os.setgroups([])
    os.umask(0)
    options = {"allow_other": True, "use_ino": True, "attr_timeout": 0, "entry_timeout": 0, "fsname": "homes:/export"}
    fusepy.FUSE(SquashingHome(), sys.argv[1], foreground=True, nothreads=True, **options)
