# SPDX-License-Identifier: Apache-2.0
"""Makes a small Open MPI that leads to one that is there already, in which nothing is changed.

Usage: python3 existing_openmpi.py JSON TREE

JSON has ``path`` (its folder), ``folders`` (those of its libraries), ``link`` (by which the new one is used), ``etc``
(the cluster's settings of Open MPI) and ``ucx`` (those of UCX). TREE is the new folder. Exits 1 with a sentence on
standard error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
MADE_HERE = {"bin", "sbin", "lib", "etc", "libexec"}
SETTINGS = "openmpi-mca-params.conf"
# The name by which a program is called tells it the folder in which daemons on other nodes are.
PROGRAM = """\
#!/bin/bash -p
export OPAL_PREFIX={link}
export LD_LIBRARY_PATH={library_path}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
own=${{HOME:-}}/.openmpi/mca-params.conf
export OMPI_MCA_mca_base_param_files="${{OMPI_MCA_mca_base_param_files:-$own,{settings}}}"
[ ! -e {ucx}/ucx.conf ] || export UCX_CONFIG_DIR="${{UCX_CONFIG_DIR:-{ucx}}}"
exec -a "$0" {program} "$@"
"""


def programs(path: Path) -> list[Path]:
    """Return the programs of an Open MPI."""
    its = sorted((path / "bin").iterdir())
    return [one for one in its if NAME.fullmatch(one.name) and one.is_file() and os.access(one, os.X_OK)]


def make(asked: dict, tree: Path) -> None:
    """Write the links and the programs."""
    path, (own, *beside) = Path(asked["path"]), asked["folders"]
    words = {
        "link": asked["link"],
        "library_path": ":".join([f"{asked['link']}/{Path(own).name}", *beside]),
        "settings": f"{asked['etc']}/{SETTINGS},{path}/etc/{SETTINGS}",
        "ucx": asked["ucx"],
    }
    (tree / "bin").mkdir(parents=True)
    (tree / "libexec").mkdir()
    for program in programs(path):
        made = tree / "bin" / program.name
        made.write_text(PROGRAM.format(program=program, **words), encoding="utf-8")
        made.chmod(0o755)
    for folder in sorted(path.iterdir()):
        if NAME.fullmatch(folder.name) and folder.name not in MADE_HERE and folder.is_dir():
            (tree / folder.name).symlink_to(folder)
    (tree / "lib").symlink_to(own)  # which may be lib64
    (tree / "etc").symlink_to(asked["etc"])


def main() -> int:
    """Make the Open MPI of the arguments."""
    asked = json.loads(sys.argv[1])
    try:
        make(asked, Path(sys.argv[2]))
    except OSError as error:
        print(f"{asked['path']} cannot be led to ({error}); look at this folder on the node.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
