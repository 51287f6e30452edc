"""Small wheels for tests of pip."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, *requires: str, tag: str = "py3-none-any", tag_inside: str = ""
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag_inside or tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
