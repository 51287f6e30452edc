# SPDX-License-Identifier: Apache-2.0
"""Bring the files that a build needs into its work folder, and remove what its result does not need."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import pushed_file, tree_removal, user_identity
from ansible_collections.clusterctl.hpc.plugins.module_utils.archive_unpack import unpack
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError


def bring(files: List[Dict[str, Any]], work: Path, software: str, say: Callable[[str], None]) -> None:
    """Copy or unpack each file below the work folder, and remove the copy that the controller pushed.

    Args:
        files: as the option of the module artifact_build, each with the ``path`` of the pushed copy.
        work: the work folder.
        software: name and version of what is built, for messages.
        say: gets the progress.

    Raises:
        ArtifactError: a place is outside of the work folder, or an archive is not readable.
    """
    for item in files:
        target = work / item["dest"]
        if work not in Path(os.path.normpath(target)).parents:
            raise ArtifactError(f"The file's dest {item['dest']} is not below the work folder.")
        link = user_identity.first_link(str(target), str(work))
        if link:  # of an archive before this file
            raise ArtifactError(f"The file's dest {item['dest']} leads through the link {link}; use another archive.")
        say(f"unpack: {item['dest']}")
        taken = work / ".pushed" if item["unpack"] else target
        taken.parent.mkdir(parents=True, exist_ok=True)
        pushed_file.take(item["path"], item["sha256"], item["size"], taken)
        if item["unpack"]:
            try:
                unpack(str(taken), target, item["strip"], item["exclude"])
            except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
                raise ArtifactError(
                    f"The source of {software} cannot be unpacked ({error}); check its sha256 and fetch it again."
                ) from error
            taken.unlink()
        Path(item["path"]).unlink()


def prune(tree: Path, patterns: List[str]) -> None:
    """Remove paths from a finished tree.

    Args:
        tree: the tree, which the steps of a build have written.
        patterns: of paths below it.

    Raises:
        ArtifactError: the way to a path leads through a link, where root would remove something else.
    """
    for pattern in patterns:
        for path in sorted(tree.glob(pattern), reverse=True):
            link = user_identity.first_link(str(path.parent), str(tree))
            if link:
                raise ArtifactError(f"{path} cannot be removed, because {link} is a link; correct the build's steps.")
            if path.is_dir() and not path.is_symlink():
                tree_removal.remove(str(path))
            else:
                path.unlink()
