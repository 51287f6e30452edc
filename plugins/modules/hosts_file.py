# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Keep the cluster's names in /etc/hosts and prove that the node resolves them to these addresses."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hosts_file
short_description: Keep the cluster's names in /etc/hosts and prove that they resolve
version_added: 0.1.0
description:
  - Keeps O(content) in a managed block of a hosts file. Everything around the block stays, byte for byte.
  - Removes the names of the block from every other line with another address. glibc answers with the addresses of all
    lines that hold a name and prefers a loopback. Debian's installer writes C(127.0.1.1 node1) on node1, which would
    win over the block on that node. The original line is kept as a comment. It comes back when the block no longer
    needs the name.
  - At the end resolves every name as any program on the node does. A wrong answer fails the module.
options:
  content:
    description: Lines of hosts(5). An empty content removes the block.
    type: str
    required: true
  hostfile:
    description: Lines of C(/etc/clusterctl/hostfile) for mpirun and horovodrun. Left out, the file stays as it is.
    type: str
  own_names:
    description:
      - Names that the node gives itself. They stand in this file behind O(own_address), unless O(content) has them.
      - Names of this machine itself (C(localhost)), addresses and invalid names are left out.
    type: list
    elements: str
    default: []
  own_address:
    description: The address of O(own_names). Empty leaves them out.
    type: str
    default: ""
  path:
    description: The file.
    type: str
    default: /etc/hosts
  marker:
    description: The block's name.
    type: str
    default: hosts
  skip_resolvable:
    description:
      - Whether to leave out lines whose names already resolve to their address, for example by DNS. A line of the
        present block stays, because the block is what makes it resolve.
    type: bool
    default: false
  verify:
    description: Whether to resolve every name at the end. Use it only for the system's own file.
    type: bool
    default: true
  owner:
    description: User name or number. Left out, the file keeps its own.
    type: str
  group:
    description: Group name or number. Left out, the file keeps its own.
    type: str
  mode:
    description: Four octal digits in quotes. Left out, the file keeps its own.
    type: raw
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: "Changes nothing, so the names are not resolved at the end."}
  diff_mode: {support: full, description: The file before and after.}
"""

EXAMPLES = r"""
- name: Teach the node the cluster's names
  clusterctl.hpc.hosts_file:
    content: |
      10.0.0.1 node1
      10.0.0.2 node2
    owner: root
    group: root
    mode: "0644"
"""

RETURN = r"""
msg: {description: "What went wrong, in one sentence.", type: str, returned: failure}
changes: {description: A short phrase for each thing that changed., type: list, elements: str, returned: success}
watch: {description: The state of the file from now on., type: list, elements: dict, returned: success}
diff:
  description: The file before and after, in diff mode.
  returned: success, in diff mode
  type: list
  elements: dict
"""

import queue
import re
import socket
import threading
import time
from typing import Dict, Iterable, List, Set

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    config_line,
    file_stage,
    file_transaction,
    ip_address,
    session_files,
    text_edit,
)

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_NUMERIC = re.compile(r"[0-9.]+")
_RESOLVERS = 16
_RESOLVE_SECONDS = 10  # for all names together: a resolver that is down must not hold up the run


def resolve(names: Iterable[str], family: int, seconds: float) -> Dict[str, Set[str]]:
    """Return the addresses that this node gives for each name; an empty set for a name without an answer in time."""
    waiting: "queue.Queue[str]" = queue.Queue()
    answers: Dict[str, Set[str]] = {name: set() for name in names}
    for name in answers:
        waiting.put(name)

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
                answers[name] = {str(entry[4][0]) for entry in found}
            except OSError:
                pass

    # Daemon threads: a lookup in a hanging resolver cannot be stopped, and the module must end all the same.
    workers = [threading.Thread(target=work, daemon=True) for _unused in range(min(_RESOLVERS, len(answers)))]
    for worker in workers:
        worker.start()
    end = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    return {name: set(found) for name, found in answers.items()}


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _resolved_wrongly(wanted: Dict[str, str]) -> Dict[str, Set[str]]:
    """Return, for each name that does not resolve to its address alone, what it resolves to."""
    wrong: Dict[str, Set[str]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        names = [name for name, address in wanted.items() if _family(address) == family]
        answers = resolve(names, family, _RESOLVE_SECONDS)
        wrong.update({name: found for name, found in answers.items() if found != {wanted[name]}})
    return wrong


def without_resolvable(text: str, marker: str, content: str) -> str:
    """Return the content without the lines whose names already resolve without the block."""
    present = text_edit.block_hosts(text, marker)
    new = {name: at for name, at in text_edit.host_names(content).items() if present.get(name) != at}
    needed = _resolved_wrongly(new)
    kept: List[str] = []
    for line in text_edit.lines_of(content):
        names = line.partition("#")[0].split()[1:]
        if not names or any(name.lower() in needed or name.lower() not in new for name in names):
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def with_own_names(content: str, address: str, names: Iterable[str]) -> str:
    """Return the content with the names that the node gives itself: a full name first, any other one last.

    ``hostname -f`` prints the first name of the line.

    Raises:
        EditError: the address is not one.
    """
    known = text_edit.host_names(content)
    new = [name for name in dict.fromkeys(names) if name.lower() not in known and _is_own_name(name)]
    if not address or not new:
        return content
    if not ip_address.is_address(address):
        raise text_edit.EditError(f"own_address is {config_line.shown(address)}, which is not an IP address")
    lines = text_edit.lines_of(content)
    place = next((number for number, line in enumerate(lines) if line.split()[:1] == [address]), None)
    if place is None:
        place = len(lines)
        lines.append(address)
    full = [name for name in new if "." in name]
    present = lines[place].split()[1:]
    lines[place] = " ".join([address, *full, *present, *(name for name in new if name not in full)])
    return "".join(f"{line}\n" for line in lines)


def _is_own_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.startswith("localhost") and not _NUMERIC.fullmatch(name)


def hostfile_entries(lines: str) -> List[file_transaction.Entry]:
    """Return the entries of the hostfile and of its folder."""
    path, mine = session_files.HOSTFILE, {"uid": 0, "gid": 0}
    return [
        file_transaction.Entry(path=session_files.FOLDER, state="directory", mode=0o755, **mine),
        file_transaction.Entry(path=path, state="file", content=lines.encode(), mode=0o644, **mine),
    ]


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "content": {"type": "str", "required": True},
            "hostfile": {"type": "str"},
            "own_names": {"type": "list", "elements": "str", "default": []},
            "own_address": {"type": "str", "default": ""},
            "path": {"type": "str", "default": "/etc/hosts"},
            "marker": {"type": "str", "default": "hosts"},
            "skip_resolvable": {"type": "bool", "default": False},
            "verify": {"type": "bool", "default": True},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "mode": {"type": "raw"},
        },
        supports_check_mode=True,
    )
    given = module.params
    written: Dict[str, str] = {}

    def edit(text: str) -> str:
        content = with_own_names(given["content"], given["own_address"], given["own_names"])
        if given["skip_resolvable"]:
            content = without_resolvable(text, given["marker"], content)
        result = text_edit.set_hosts(text, given["marker"], content)
        written.update(text_edit.host_names(content))
        return result

    def verify() -> str:
        if not given["verify"]:
            return ""
        wrong = _resolved_wrongly(written)
        if not wrong:
            return ""
        name = min(wrong)
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        found = " and ".join(sorted(wrong[name])) or "nothing"
        return (
            f"The name '{name}' resolves to {found} instead of {written[name]}{more}, although {given['path']} has it; "
            "let 'hosts:' in /etc/nsswitch.conf begin with 'files', and restart nscd where it runs."
        )

    file_stage.run(
        module,
        lambda: [
            file_transaction.Entry(
                path=given["path"],
                state="edit",
                edit=edit,
                what=f"block '{given['marker']}'",
                **file_transaction.attributes(given["path"], given),
            ),
            *(hostfile_entries(given["hostfile"]) if given["hostfile"] else []),
        ],
        verify,
    )


if __name__ == "__main__":
    main()
