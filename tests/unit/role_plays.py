"""The plays that the READMEs of the roles show, and how to play them without clusterctl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.support import content

_YAML = re.compile(r"^```yaml\n(- name: .*?)^```$", re.MULTILINE | re.DOTALL)


def roles() -> list[Path]:
    """Return the folder of each role that a play uses; ``software`` is what five of them share."""
    return sorted(path.parent for path in (content.root() / "roles").glob("*/molecule"))


def shown(role: Path) -> list[str]:
    """Return the plays of the README that play this role."""
    found = [text for text in _YAML.findall((role / "README.md").read_text(encoding="utf-8")) if "\n  roles:\n" in text]
    return [text for text in found if f"clusterctl.hpc.{role.name}" in text]


def alone(name: str) -> str:
    """Return a play of one role without a variable."""
    return f"- hosts: all\n  gather_facts: false\n  roles:\n    - role: clusterctl.hpc.{name}\n"


def play(
    plays: str,
    folder: Path,
    *options: str,
    collections: Path | None = None,
    config: Path | None = None,
    under: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook on plays that are written into a folder.

    Args:
        plays: the text.
        folder: where it is written.
        options: more words of the command line.
        collections: where the collection is installed; left out, this checkout.
        config: Ansible's configuration; left out, this checkout's.
        under: words before the command line.
    """
    (folder / "plays.yml").write_text(f"---\n{plays}", encoding="utf-8")
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run(
        [*under, program, *options, str(folder / "plays.yml")],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(config or content.root() / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(collections or content.collections_path()),
            "ANSIBLE_NOCOLOR": "1",
        },
    )
