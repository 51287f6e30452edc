# SPDX-License-Identifier: Apache-2.0
"""Let links of artifacts lead to other folders while a host builds, and back afterwards, also after a killed build."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Mapping

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_link, atomic_file, jobs_at_work

RECORD = "/var/lib/clusterctl/borrowed-links.json"  # by link, the folder to which it led before the build


@contextmanager
def borrowed(links: Mapping[str, str], host: str, *, while_busy: bool) -> Iterator[None]:
    """Let links lead to other folders for the time of a build, and then to their former ones.

    A file on this host names the former folders meanwhile, so that :func:`give_back` puts a killed build right.

    Args:
        links: by link, the folder for the build.
        host: name of the host, for messages.
        while_busy: whether jobs on this host are no obstacle.

    Raises:
        jobs_at_work.JobsError: jobs run here.
        OSError: a link could not be switched; all lead where they led before.
    """
    give_back()
    if not while_busy:
        jobs_at_work.refuse(links, host)
    now = {link: artifact_link.tree_of(link) for link in links}
    before = {link: now[link] for link, tree in links.items() if now[link] != tree}
    if before:
        Path(RECORD).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        atomic_file.write(RECORD, json.dumps(before))
    try:
        for link in before:
            artifact_link.switch(link, links[link])
        yield
    finally:
        if before:
            give_back()


def give_back() -> None:
    """Let the links that a build has borrowed lead to their former folders again.

    Raises:
        OSError: a link could not be switched; the next call tries again.
    """
    try:
        before = json.loads(Path(RECORD).read_bytes())
    except (OSError, ValueError):
        return
    for link, tree in before.items():
        if tree and artifact_link.tree_of(link) != tree:
            artifact_link.switch(link, tree)
        elif not tree and Path(link).is_symlink():
            Path(link).unlink()
    with suppress(FileNotFoundError):
        Path(RECORD).unlink()
