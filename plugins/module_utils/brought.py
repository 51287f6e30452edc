# SPDX-License-Identifier: Apache-2.0
"""Everything that clusterctl brings to a node: the files that it edits, its own files, folders, trees and links.

``uninstall`` knows from here what to look for on a node whose record of origins is missing or begins later.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Iterable, List, Sequence, Set, Tuple

# Files that others write too; clusterctl has a block or marked lines in them.
_TEXTS = (
    "/etc/csh.login",
    "/etc/environment",
    "/etc/hosts",
    "/etc/nccl.conf",
    "/etc/ssh/ssh_config",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/sshd_config",
    "/etc/zsh/zprofile",
)
# Below the prefix.
_BELOW = (
    *(f"etc/openmpi/{name}-mca-params.conf" for name in ("openmpi", "prte", "pmix")),
    "etc/ucx/ucx.conf",
    "share/modulefiles/clusterctl",
)
# These stay when nothing is left in them: a distribution has them, also empty.
ALWAYS_THERE = (
    *("/etc/csh.login", "/etc/environment", "/etc/hosts", "/etc/ssh/ssh_config", "/etc/ssh/sshd_config"),
    "/etc/zsh/zprofile",
)
FILES = (
    "/etc/fish/conf.d/zz-clusterctl.fish",
    "/etc/ld.so.conf.d/nccl.conf",
    "/etc/profile.d/zz-clusterctl.csh",
    "/etc/profile.d/zz-clusterctl.sh",
    "/etc/security/limits.d/zz-clusterctl.conf",
    "/etc/ssh/ssh_config.d/00-clusterctl.conf",
    "/etc/ssh/ssh_config.d/10-clusterctl.conf",
    "/etc/ssh/clusterctl-host-cert.pub",
    "/etc/ssh/clusterctl.krl",
    "/etc/ssh/sshd_config.d/00-clusterctl.conf",
    "/etc/ssh/sshd_config.d/05-clusterctl-ca.conf",
    "/etc/ssh/sshd_config.d/zz-clusterctl-sessions.conf",
    "/etc/ssh/sshd_config.d/zz-clusterctl.conf",
    "/etc/systemd/user-environment-generators/50-clusterctl",
)
_FOLDERS = ("/etc/clusterctl", "/var/cache/clusterctl", "/var/log/clusterctl")
STATE = "/var/lib/clusterctl"
# Folders that clusterctl makes where they are missing, and that others use too.
_SHARED_FOLDERS = ("/etc/ssh/ssh_config.d", "/etc/systemd/user-environment-generators")
_SHARED_BELOW = ("etc", "etc/openmpi", "etc/ucx", "lib", "libexec", "share", "share/modulefiles")
HEADERS = ("/usr/include/nccl.h", "/usr/include/nccl_device.h", "/usr/include/nccl_device")
ROOT = "/usr/local"
NAMES = ("ucx", "openmpi", "cpython", "python_env", "mpi4py", "nccl", "horovod")
_LINK = "/openmpi"
MARKER = ".clusterctl.json"
SSHD = "/etc/ssh/sshd_config"  # and the files in its folder
# What the settings of sshd name: it refuses every key while one of them is missing.
NAMED_BY_SSHD = ("/etc/ssh/clusterctl.krl", "/etc/ssh/clusterctl-host-cert.pub")
LOADER = "/etc/ld.so.conf.d/"
_TREE = re.compile(r"[A-Za-z0-9_]+-[^/]+-[0-9a-f]{16}")
_PARTIAL = re.compile(r"\.[A-Za-z0-9_]+-[^/]+-[0-9a-f]{16}\.[^/]+")
_PUSHED = re.compile(r"clusterctl-push-[0-9a-f]{16}-[^/]+")
_BUILD = re.compile(rf"clusterctl-(?:{'|'.join(NAMES)})-[a-z0-9_]{{8}}")
_MOST_LEFT = 1000  # of one folder; a user could make any number of files with these names
_IN_HOME = re.compile(r"/(?:root|home/[^/]+)/\.ssh(?:/(?:authorized_keys|[A-Za-z0-9_][A-Za-z0-9_.-]*(?:\.pub)?))?")


def texts(roots: Sequence[str] = (ROOT,)) -> List[str]:
    """Return the files that others write too; the roots are prefixes of the software."""
    return [*_TEXTS, *(f"{root}/{name}" for root in roots for name in _BELOW)]


def folders(roots: Sequence[str] = (ROOT,)) -> List[str]:
    """Return the folders that hold nothing of anybody else."""
    return [*_FOLDERS, *(f"{root}/{name}/clusterctl" for root in roots for name in ("lib", "libexec"))]


def roots_in(paths: Iterable[str]) -> List[str]:
    """Return the prefixes that paths of a record of origins tell of: those in which Open MPI's link was set."""
    links = (path[: -len(_LINK)] for path in paths if path.endswith(_LINK))
    return sorted({root for root in links if root and not root.endswith("/etc")})


def covers(path: str, root: str = ROOT) -> bool:
    """Tell whether ``uninstall`` knows a path without a record of it."""
    name = os.path.basename(path)  # noqa: PTH119 - a text
    return (
        path in {*texts([root]), *FILES, *folders([root]), *_SHARED_FOLDERS, *HEADERS, STATE}
        or path in {f"{root}/{name}" for name in _SHARED_BELOW}
        or any(path.startswith(f"{folder}/") for folder in (*folders([root]), STATE))
        or (path.startswith(f"{root}/") and (name in NAMES or _TREE.fullmatch(name) is not None))
        or _IN_HOME.fullmatch(path) is not None
    )


def is_tree_name(name: str) -> bool:
    """Tell whether a name is that of an artifact's folder."""
    return _TREE.fullmatch(name) is not None


def trees_and_links(root: str = ROOT) -> Tuple[List[str], List[str]]:
    """Return the folders of artifacts, unfinished ones too, and the links that lead to one."""
    trees, links = [], []
    for path in sorted(Path(root).iterdir()) if Path(root).is_dir() else []:
        if path.is_symlink():
            target = os.path.normpath(path.parent / path.readlink()) if _TREE.search(str(path.readlink())) else ""
            if target and is_tree_name(Path(target).name) and str(Path(target).parent) == str(path.parent):
                links.append(str(path))
        elif path.is_dir() and (
            (is_tree_name(path.name) and (path / MARKER).is_file()) or _PARTIAL.fullmatch(path.name)
        ):
            trees.append(str(path))
    return trees, links


def mount_points(table: str = "/proc/self/mountinfo") -> Set[str]:
    """Return where file systems are mounted; one of a user may never answer, and nothing of ours is one."""
    with suppress(OSError):
        rows = Path(table).read_bytes().decode("utf-8", "replace").split("\n")
        return {place for row in rows for place in row.split(" ")[4:5]}
    return set()


def left_in(folder: str) -> List[str]:
    """Return what unfinished runs left in a folder that others use too: copied packs, and root's folders of builds.

    A pack is a regular file of the login user or the job user. Anything else is believed only where root owns it.
    """
    found: List[str] = []
    mounted = mount_points()
    with suppress(OSError):
        for path in Path(folder).iterdir():
            if str(path) in mounted or not (_PUSHED.fullmatch(path.name) or _BUILD.fullmatch(path.name)):
                continue
            with suppress(OSError):
                state = path.lstat()
                pack = stat.S_ISREG(state.st_mode) and _PUSHED.fullmatch(path.name)
                if pack or state.st_uid == 0:
                    found.append(str(path))
            if len(found) == _MOST_LEFT:
                break
    return sorted(found)
