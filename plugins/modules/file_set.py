# SPDX-License-Identifier: Apache-2.0
"""Lay out a role's files in one trip: all of them or none."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: file_set
short_description: Lay out several files, blocks, directories and links in one trip, all or none
version_added: 0.1.0
description:
  - Looks at every path first, writes all new content beside its target, runs every validator on what was written, and
    only then renames each into place. When anything fails, nothing has been replaced.
  - One call costs what one task costs, however many files it lays out.
  - New content appears by rename, so that no reader ever sees half a file. Where a file is a mount point (containers
    mount C(/etc/hosts) so), it is written in place instead.
  - An SELinux context is carried over from the file that is replaced, or taken from the policy for a new one.
options:
  files:
    description:
      - What should be at each path. The order matters only for a directory, which stands before what it holds.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path, in its simplest form. Each path may be named once.
        type: str
        required: true
      state:
        description:
          - V(file) holds exactly O(files[].content). A link there is replaced by a file.
          - V(block) holds O(files[].content) between two marker lines and keeps everything around it, byte for byte; a
            link is followed. An empty content takes the block out.
          - V(directory) is there; its parent must be.
          - V(link) leads to O(files[].target).
          - V(absent) is not there; a directory goes with all it holds.
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
          - Command that must succeed on the new content before anything is put in place, as a list; V(%s) in it stands
            for the staged file. No shell is involved.
        type: list
        elements: str
        default: []
      backup:
        description: Whether to keep the file that is replaced, with the date in its name.
        type: bool
        default: false
      sensitive:
        description: Whether to keep the content out of the diff, the invocation and a validator's complaint.
        type: bool
        default: false
      user:
        description:
          - The user with whose identity the path is read and written. Name it for every path below a home, where a user
            may set a link to any file of the node. Only root can act as another user.
          - Left out, the module acts as the user who runs it. As root it then refuses a path that leads through a link
            which another user could have set.
        type: str
author:
  - The clusterctl authors
attributes:
  check_mode:
    support: full
    description: Looks, runs the validators on copies in a private folder, and changes nothing.
  diff_mode:
    support: full
    description: Before and after of every path that changes.
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

- name: Take the block out again and remove what is left of the old tool
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
msg:
  description: What went wrong, in one sentence.
  returned: failure
  type: str
changes:
  description: A short phrase for each thing that changed.
  returned: success
  type: list
  elements: str
  sample: ["created /etc/ssh/ssh_config.d/30-cluster.conf", "changed block 'hosts' in /etc/hosts"]
watch:
  description: The state of every path from now on. In check mode, of those that need no change.
  returned: success
  type: list
  elements: dict
backups:
  description: The files that were kept.
  returned: when there are any
  type: list
  elements: str
diff:
  description: Before and after of every path that changed, in diff mode.
  returned: success, in diff mode
  type: list
  elements: dict
"""

from functools import partial
from typing import Any, Dict, Optional, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import file_entry, text_edit, watched_module

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
    "backup": {"type": "bool", "default": False},
    "sensitive": {"type": "bool", "default": False},
    "user": {"type": "str"},
}
# Which keys mean something in which state; one that means nothing is a mistake worth a sentence.
_MEANINGFUL = {
    "content": {"file", "block"},
    "marker": {"block"},
    "target": {"link"},
    "mode": {"file", "block", "directory"},
    "owner": {"file", "block", "directory"},
    "group": {"file", "block", "directory"},
    "validate": {"file", "block"},
    "backup": {"file", "block"},
}
_NEEDED = {"file": ("content",), "block": ("content", "marker"), "link": ("target",)}


def entry_of(given: Dict[str, Any]) -> file_entry.Entry:
    """Return the entry that one item of O(files) asks for.

    Raises:
        file_entry.StageError: keys are missing or mean nothing in that state, or the owner, group or mode is wrong.
    """
    path, state = given["path"], given["state"]
    for key in _NEEDED.get(state, ()):
        if given[key] is None:
            raise file_entry.StageError(f"{path} is of state '{state}', which needs '{key}'.")
    for key, states in _MEANINGFUL.items():
        if given[key] and state not in states:
            raise file_entry.StageError(f"{path} is of state '{state}', for which '{key}' means nothing; leave it out.")
    file_entry.check_validator(path, given["validate"])
    if given["user"] and given["validate"]:
        raise file_entry.StageError(f"{path} has a 'user', for which 'validate' means nothing; leave it out.")
    edit, what = _edit_of(given)
    return file_entry.Entry(
        path=path,
        state="edit" if edit else state,
        content=(given["content"] or "").encode("utf-8", "surrogateescape"),
        edit=edit,
        what=what,
        target=given["target"] or "",
        mode=file_entry.parse_mode(path, given["mode"]),
        uid=file_entry.owner_id(path, given["owner"]),
        gid=file_entry.group_id(path, given["group"]),
        validate=tuple(given["validate"]),
        backup=given["backup"],
        sensitive=given["sensitive"],
        user=file_entry.user_entry(path, given["user"]),
    )


def _edit_of(given: Dict[str, Any]) -> Tuple[Optional[Any], str]:
    if given["state"] != "block":
        return None, ""
    marker = given["marker"]
    return partial(text_edit.set_block, marker=marker, content=given["content"]), f"block '{marker}'"


def main() -> None:
    """Run the module."""
    module = watched_module.QuietModule(
        argument_spec={"files": {"type": "list", "elements": "dict", "required": True, "options": _FILE}},
        supports_check_mode=True,
    )
    watched_module.run(module, lambda: [entry_of(given) for given in module.params["files"]])


if __name__ == "__main__":
    main()
