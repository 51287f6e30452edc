# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Lay out several files, blocks, directories and links of a node in one step: all or none."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: file_set
short_description: Lay out several files, blocks, directories and links in one trip, all or none
version_added: 0.1.0
description:
  - Looks at every path, writes all new content beside the targets, runs every validator on it, and then renames each
    file into place. After an error every path is as it was before.
  - Many files cost one task.
  - New content appears by rename, so a reader never sees half a file. A file that is a mount point, such as
    C(/etc/hosts) in a container, is written in place.
  - A replaced file passes on its SELinux context. A new file gets the context of the policy.
options:
  files:
    description:
      - The wanted state of each path. A directory stands before the paths in it; otherwise the order does not matter.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute, normalized path. Name each path once.
        type: str
        required: true
      state:
        description:
          - V(file) holds exactly O(files[].content). A file replaces a link.
          - V(block) holds O(files[].content) between two marker lines and keeps everything around it, byte for byte. It
            follows a link. An empty content removes the block.
          - V(directory) exists. Its parent must exist.
          - V(link) leads to O(files[].target).
          - V(absent) does not exist. A directory is removed with its content.
        type: str
        choices: [file, block, directory, link, absent]
        default: file
      content:
        description: The whole text of a file, or the lines of a block.
        type: str
      marker:
        description:
          - The block's name. Its lines are C(# BEGIN clusterctl NAME) and C(# END clusterctl NAME).
        type: str
      target:
        description: Where a link leads.
        type: str
      owner:
        description: User name or number. Left out, an existing path keeps its own.
        type: str
      group:
        description: Group name or number. Left out, an existing path keeps its own.
        type: str
      mode:
        description:
          - Four octal digits in quotes. Left out, an existing path keeps its own; a new file gets 0644 and a new
            directory 0755.
        type: raw
      validate:
        description:
          - Command, as a list, that must succeed on the new content before any file is replaced. V(%s) stands for the
            staged file. V(%s...) as the last word stands for those of all entries with the same command, which then
            runs once. The command runs without a shell.
        type: list
        elements: str
        default: []
      sensitive:
        description: Whether to hide the content in the diff, the invocation and the output of a validator.
        type: bool
        default: false
      watch:
        description:
          - What of the path counts as drift later. V(file) means all of it. V(block) means the mode, the owner and the
            lines of the block, for a file whose other lines belong to a user. V(none) means nothing, for a file that
            is its user's alone from now on.
        type: str
        choices: [file, block, none]
        default: file
      user:
        description:
          - The user with whose identity the path is read and written. Name it for every path below a home, where a user
            may set a link to any file of the node. Only root can act as another user.
          - Left out, the module acts as the user who runs it. As root it then refuses a path that leads through a link
            which another user could have set.
        type: str
  proof:
    description:
      - Command, as a list, that must succeed once every path is as wanted. The command runs without a shell.
      - Where it fails, the paths stay as they are then. Check mode leaves it out.
    type: list
    elements: str
    default: []
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: "Runs the validators on copies in a private folder, and changes nothing."}
  diff_mode: {support: full, description: Before and after of every path that changes.}
"""

EXAMPLES = r"""
- name: Lay out the ssh client's settings
  clusterctl.hpc.file_set:
    files:
      - path: /etc/ssh/ssh_config.d
        state: directory
        owner: root
        group: root
        mode: "0755"
      - path: /etc/ssh/ssh_config.d/30-cluster.conf
        content: |
          Host node*
              StrictHostKeyChecking yes
        owner: root
        group: root
        mode: "0644"
        validate: [ssh, -G, -F, "%s", node1]
      - path: /etc/hosts
        state: block
        marker: hosts
        content: |
          10.0.0.1 node1
          10.0.0.2 node2

- name: Remove the block and the files of the old tool
  clusterctl.hpc.file_set:
    files:
      - path: /etc/hosts
        state: block
        marker: hosts
        content: ""
      - path: /etc/old-tool
        state: absent
"""

RETURN = r"""
msg: {description: "What went wrong, in one sentence.", type: str, returned: failure}
changes:
  description: A short phrase for each thing that changed.
  returned: success
  type: list
  elements: str
  sample: ["created /etc/ssh/ssh_config.d/30-cluster.conf", "changed block 'hosts' in /etc/hosts"]
watch:
  description: The state of every path from now on. In check mode only of the paths that need no change.
  returned: success
  type: list
  elements: dict
diff:
  description: Before and after of every path that changed, in diff mode.
  returned: success, in diff mode
  type: list
  elements: dict
"""

from functools import partial
from typing import Any, Dict, Optional, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import command, file_stage, file_transaction, text_edit

_PROOF_S = 60
_MOST_EVIDENCE = 1500  # characters of a proof that fails

_FILE = {
    "path": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["file", "block", "directory", "link", "absent"], "default": "file"},
    "content": {"type": "str"},
    "marker": {"type": "str"},
    "target": {"type": "str"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "raw"},
    "validate": {"type": "list", "elements": "str", "default": []},
    "sensitive": {"type": "bool", "default": False},
    "watch": {"type": "str", "choices": ["file", "block", "none"], "default": "file"},
    "user": {"type": "str"},
}
# The states in which each key has a meaning; elsewhere it is refused.
_MEANINGFUL = {
    "content": {"file", "block"},
    "marker": {"block"},
    "target": {"link"},
    "mode": {"file", "block", "directory"},
    "owner": {"file", "block", "directory"},
    "group": {"file", "block", "directory"},
    "validate": {"file", "block"},
}
_NEEDED = {"file": ("content",), "block": ("content", "marker"), "link": ("target",)}


def entry_of(given: Dict[str, Any]) -> file_transaction.Entry:
    """Return the entry that one item of O(files) asks for.

    Raises:
        file_transaction.StageError: keys are missing or have no meaning here, or owner, group or mode is invalid.
    """
    path, state = given["path"], given["state"]
    for key in _NEEDED.get(state, ()):
        if given[key] is None:
            raise file_transaction.StageError(f"{path} is of state '{state}', which needs '{key}'.")
    for key, states in _MEANINGFUL.items():
        if given[key] and state not in states:
            raise file_transaction.StageError(
                f"{path} is of state '{state}', for which '{key}' means nothing; leave it out."
            )
    if given["watch"] == "block" and state != "block":
        raise file_transaction.StageError(
            f"{path} is of state '{state}', which has no block to watch; leave 'watch' out."
        )
    file_transaction.check_validator(path, given["validate"])
    if given["user"] and given["validate"]:
        raise file_transaction.StageError(f"{path} has a 'user', for which 'validate' means nothing; leave it out.")
    edit, what = _edit_of(given)
    return file_transaction.Entry(
        path=path,
        state="edit" if edit else state,
        content=(given["content"] or "").encode("utf-8", "surrogateescape"),
        edit=edit,
        what=what,
        target=given["target"] or "",
        **file_transaction.attributes(path, given),
        validate=tuple(given["validate"]),
        sensitive=given["sensitive"],
        user=file_transaction.user_entry(path, given["user"]),
        is_watched=given["watch"] != "none",
        watched_block=given["marker"] if given["watch"] == "block" else "",
    )


def _edit_of(given: Dict[str, Any]) -> Tuple[Optional[Any], str]:
    if given["state"] != "block":
        return None, ""
    marker = given["marker"]
    return partial(text_edit.set_block, marker=marker, content=given["content"]), f"block '{marker}'"


def refusal(proof: Sequence[str]) -> str:
    """Run the command that proves the files; return a sentence where it fails, else ''."""
    if not proof:
        return ""
    done = command.run(proof, _PROOF_S)
    if done.ok:
        return ""
    said = done.said.strip()[-_MOST_EVIDENCE:] or f"it ended with {done.status}"
    return f"The files are in place, but '{' '.join(proof)}' fails: {said}"


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True, "options": _FILE},
            "proof": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    file_stage.run(
        module,
        lambda: [entry_of(given) for given in module.params["files"]],
        verify=lambda: refusal(module.params["proof"]),
    )


if __name__ == "__main__":
    main()
