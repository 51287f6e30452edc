# SPDX-License-Identifier: Apache-2.0
"""Makes a small Python environment that leads to one of the user's, in which nothing is changed.

Usage: python3 existing_environment.py JSON TREE

JSON has ``folder`` and ``interpreter`` of the user's environment, ``base`` and ``real`` (prefix and program of its
Python), ``release`` (3.11), ``shares`` (it sees the packages of that Python), ``linked`` (folders of packages that come
first) and ``folders`` (its own). TREE is the new folder. Exits 1 with a sentence on standard error.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# Programs of the environment itself, and installers: they would act on the new folder.
LEFT_OUT = re.compile(r"(python|pip|pydoc|idle|2to3|conda|mamba|uv)[0-9.x]*(-.*)?|(de)?activate.*|easy_install.*")
HEAD = 512
PROGRAM = """\
#!/bin/sh
exec "${{0%/*}}/python" {path} "$@"
"""


def settings(asked: dict) -> str:
    """Return the text of pyvenv.cfg, by which Python finds its library and its packages."""
    home = str(Path(asked["real"]).parent if asked["base"] == "/usr" else Path(asked["base"], "bin"))
    shares = "true" if asked["shares"] else "false"
    return f"home = {home}\ninclude-system-site-packages = {shares}\nversion = {asked['release']}\n"


def path_file(asked: dict) -> str:
    """Return the lines of the .pth file: folders, and those whose own .pth files count too."""
    is_venv = asked["folder"] != asked["base"]
    own = [folder for folder in asked["folders"] if is_venv and folder.startswith(f"{asked['folder']}/")]
    lines = [*asked["linked"], *(f"import site; site.addsitedir({folder!r})" for folder in own)]
    return "".join(f"{line}\n" for line in lines)


def programs(folder: Path) -> list[Path]:
    """Return the programs of an environment that its Python runs."""
    start = re.compile(rb"#!(" + re.escape(str(folder)).encode() + rb"/bin/python[0-9.]*\s|/bin/sh\s+'''exec' )")
    found = []
    for path in sorted((folder / "bin").iterdir()):
        if NAME.fullmatch(path.name) and not LEFT_OUT.fullmatch(path.name) and path.is_file():
            with path.open("rb") as stream:
                if start.match(stream.read(HEAD)):
                    found.append(path)
    return found


def make(asked: dict, tree: Path) -> None:
    """Write the environment."""
    packages = tree / f"lib/python{asked['release']}/site-packages"
    packages.mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "bin/python").symlink_to(asked["interpreter"])
    for name in ("python3", f"python{asked['release']}"):
        (tree / "bin" / name).symlink_to("python")
    (tree / "pyvenv.cfg").write_text(settings(asked), encoding="utf-8")
    (packages / "clusterctl.pth").write_text(path_file(asked), encoding="utf-8")
    # of a Python of the distribution, they belong to the system
    for path in [] if asked["folder"] == "/usr" else programs(Path(asked["folder"])):
        made = tree / "bin" / path.name
        made.write_text(PROGRAM.format(path=path), encoding="utf-8")
        made.chmod(0o755)
    # what looks for the framework's NCCL, looks below the packages of the cluster's environment
    for folder in asked["folders"]:
        for name in ("torch", "nvidia"):
            if Path(folder, name).is_dir() and not (packages / name).is_symlink():
                (packages / name).symlink_to(Path(folder, name))


def main() -> int:
    """Make the environment of the arguments."""
    asked = json.loads(sys.argv[1])
    try:
        make(asked, Path(sys.argv[2]))
    except OSError as error:
        print(f"{asked['folder']} cannot be led to ({error}); look at this folder on the node.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
