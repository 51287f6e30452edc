# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Make a new ed25519 host key for sshd of this node, and switch to it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_key
short_description: Make a new ed25519 host key for sshd, and switch to it
version_added: 0.1.0
description:
  - In the phase C(stage) it makes a new key beside the one that sshd shows, and returns its public half. sshd goes on
    with the old key, so that others can learn the new key first.
  - In the phase C(switch) the new key takes the place of the old one, and sshd reads it. Open sessions stay.
  - Both phases can be repeated after an interruption. A new key that was made before is used. A public half that does
    not belong to the private half is written anew, and an sshd that shows another key than its file is reloaded.
options:
  phase:
    description: What to do.
    type: str
    choices: [stage, switch]
    required: true
  address:
    description: Address at which sshd of this node answers.
    type: str
    required: true
  port:
    description: Port at which sshd of this node answers.
    type: int
    default: 22
  wait_s:
    description: Seconds until sshd has to show its new key.
    type: int
    default: 20
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: Says what would be made. The public half of a missing key is empty.}
  diff_mode: {support: none, description: A key is not shown.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
next_host_key:
  description: Type and key of the new key. In the phase C(switch), of the key that sshd shows now.
  returned: success
  type: str
host_keys: {description: The present key and the next one., type: list, elements: str, returned: success}
changes: {description: What was made., type: list, elements: str, returned: success}
watch: {description: "Empty, because preflight tells the host keys.", type: list, elements: dict, returned: success}
"""

import os
import time
from pathlib import Path
from typing import List, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    audited_module,
    command,
    disk_files,
    origins,
    sshd,
    user_identity,
)

_TYPE = "ssh-ed25519"
_DEFAULT = "/etc/ssh/ssh_host_ed25519_key"
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_SCAN_S = 5
_POLL_S = 0.2


class NoHostKeyError(user_identity.IdentityError):
    """The node cannot get a new host key; the message is one sentence."""


def key_file(files: Sequence[str]) -> Path:
    """Return sshd's file of its ed25519 key, one of the files that it is configured with.

    Raises:
        NoHostKeyError: sshd offers no such key.
    """
    if not files:
        return Path(_DEFAULT)
    found = next((path for path in files if "ed25519" in os.path.basename(path)), "")  # noqa: PTH119 - text alone
    if not found:
        raise NoHostKeyError(
            f"sshd of this node offers no ed25519 host key; add 'HostKey {_DEFAULT}' to its sshd_config."
        )
    return Path(found)


def next_file(path: Path) -> Path:
    """Return where the next key waits; no pattern of host key files matches its name."""
    return path.with_name(f".{path.name}.clusterctl-next")


def half_of(private: Path) -> str:
    """Return type and key of a private file; '' where it is missing or damaged."""
    if not private.is_file():
        return ""
    done = sshd.keygen("-y", "-P", "", "-f", str(private))
    return " ".join(done.output.split()[:2]) if done.ok else ""


def mend(path: Path, address: str, port: int, wait_s: int) -> List[str]:
    """Make the public half and the running sshd agree with the private half, after an interrupted switch."""
    changes = []
    half, public = half_of(path), path.with_name(f"{path.name}.pub")
    if half and not (public.is_file() and public.read_text(encoding="utf-8").startswith(half)):
        _write_public(path, half)
        changes.append(f"wrote {path}.pub anew")
    shown = shown_key(address, port)
    if half and shown and shown != half:
        sshd.reload()
        wait_for(half, address, port, wait_s)
        changes.append("sshd has read its host key")
    return changes


def stage(path: Path, *, check: bool) -> Tuple[str, List[str]]:
    """Make the next key where it is missing; returns its public half and what was made."""
    waiting = next_file(path)
    half = half_of(waiting)
    if half:
        return half, []
    if not check:
        origins.note_path(str(waiting), content=False)
        made = waiting.with_name(f"{waiting.name}.new")
        for each in (made, made.with_name(f"{made.name}.pub")):
            each.unlink(missing_ok=True)
        done = sshd.keygen("-q", "-t", "ed25519", "-N", "", "-C", f"root@{os.uname().nodename}", "-f", str(made))
        if not done.ok:
            raise NoHostKeyError(f"ssh-keygen made no key: {done.said}.")
        made.with_name(f"{made.name}.pub").unlink()
        made.replace(waiting)
        half = half_of(waiting)
    return half, [f"created the next host key {waiting}"]


def switch(path: Path, address: str, port: int, wait_s: int, *, check: bool) -> Tuple[str, List[str]]:
    """Let the next key take the place of the present one, and wait until sshd shows it."""
    waiting = next_file(path)
    half = half_of(waiting)
    if not half:
        return half_of(path), []
    if not check:
        waiting.replace(path)
        _write_public(path, half)
        sshd.reload()
        wait_for(half, address, port, wait_s)
    return half, [f"changed the host key {path}"]


def wait_for(half: str, address: str, port: int, wait_s: int) -> None:
    """Wait until sshd shows a key.

    Raises:
        NoHostKeyError: it still shows another one.
    """
    until = time.monotonic() + wait_s
    while (shown := shown_key(address, port)) != half:
        if time.monotonic() > until:
            what = "another host key than its file" if shown else "no ed25519 host key"
            raise NoHostKeyError(f"sshd of this node shows {what} after {wait_s} s; restart it, then repeat.")
        time.sleep(_POLL_S)


def shown_key(address: str, port: int) -> str:
    """Return type and key that sshd of this node shows; '' without an answer."""
    argv = ["ssh-keyscan", "-T", str(_SCAN_S), "-t", "ed25519", "-p", str(port), address]
    done = command.run(argv, _SCAN_S * 2, _ENVIRONMENT)
    words = [line.split() for line in done.output.split("\n") if not line.startswith("#")]
    return next((" ".join(line[1:3]) for line in words if len(line) > 2 and line[1] == _TYPE), "")  # noqa: PLR2004


def _write_public(path: Path, half: str) -> None:
    disk_files.write(path.with_name(f"{path.name}.pub"), f"{half} root@{os.uname().nodename}\n", 0o644)


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["stage", "switch"], "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "default": 22},
            "wait_s": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    given, check = module.params, module.check_mode
    where = (given["address"], given["port"], given["wait_s"])
    try:
        path = key_file(sshd.host_key_files())
        changes = [] if check else mend(path, *where)
        half, made = stage(path, check=check) if given["phase"] == "stage" else switch(path, *where, check=check)
    except (user_identity.IdentityError, OSError) as error:
        module.fail_json(msg=str(error), changes=[], watch=[])
    both = [key for key in dict.fromkeys([half_of(path), half]) if key]
    module.exit_json(
        changed=bool(changes or made), changes=[*changes, *made], watch=[], next_host_key=half, host_keys=both
    )


if __name__ == "__main__":
    main()
