# SPDX-License-Identifier: Apache-2.0
"""Import a program from a zip on standard input, and run its ``main``; nothing is written to a disk.

``clusterctl.remote.python`` sends this text to the node ahead of the zip. It needs Python 3.9 alone. Python's own
zipimport is left out: it needs a file, and it compiles each module twice.
"""

from __future__ import annotations

import struct
import sys
import zlib
from importlib.machinery import ModuleSpec

# "Local file header" of the zip specification (PKWARE APPNOTE 4.3.7): the signature, and its size without the name.
_HEADER = b"PK\3\4"
_HEADER_BYTES = 30


def files_of(archive: bytes) -> dict[str, bytes]:
    """Return the content of every file of a zip, by its path."""
    files = {}
    at = 0
    while archive[at : at + 4] == _HEADER:
        (method,) = struct.unpack_from("<H", archive, at + 8)
        packed, _unused, name, extra = struct.unpack_from("<IIHH", archive, at + 18)
        begin = at + _HEADER_BYTES + name + extra
        content = archive[begin : begin + packed]
        path = archive[at + _HEADER_BYTES : at + _HEADER_BYTES + name].decode()
        files[path] = zlib.decompress(content, -zlib.MAX_WBITS) if method else content
        at = begin + packed
    return files


class MemoryImporter:
    """Finds and loads modules among files in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        """Take the files by their path, for example ``node_look/rdma.py``."""
        self._files = files

    def _path(self, name: str) -> str:
        path = name.replace(".", "/")
        return next((end for end in (f"{path}.py", f"{path}/__init__.py") if end in self._files), "")

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return how to load a module, None for a module that is not in the zip."""
        path = self._path(name)
        if not path:
            return None
        is_package = path.endswith("/__init__.py")
        return ModuleSpec(name, self, origin=path, is_package=is_package)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave the making of the module to Python."""

    def exec_module(self, module: object) -> None:
        """Run a module's code."""
        path = self._path(module.__name__)
        exec(compile(self._files[path], path, "exec"), module.__dict__)  # noqa: S102 - our own program


def start(size: str, module: str, *arguments: str) -> int | None:
    """Read a zip of that many bytes from stdin, and run ``main(arguments)`` of one of its modules."""
    importer = MemoryImporter(files_of(sys.stdin.buffer.read(int(size))))
    sys.meta_path.insert(0, importer)
    __import__(module)
    return sys.modules[module].main(list(arguments))


if __name__ == "__main__":
    raise SystemExit(start(*sys.argv[2:]))
