# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Merge folders and variables into /etc/environment, which PAM reads for every session."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: environment_file
short_description: Merge folders and variables into /etc/environment
version_added: 0.1.0
description:
  - Puts folders at the front of lists such as C(PATH), and sets variables, in a file that pam_env reads.
  - Keeps what others wrote. A line that needs no change keeps every byte. A list keeps the folders of others behind
    ours, and holds each of our folders once.
  - Remembers in comments of the same file what it added. What is no longer asked for is removed, and a replaced
    variable comes back.
  - The file is not a shell script. Values are not expanded. A value that the file's form cannot carry is refused.
options:
  lists:
    description: Folders per variable. They stand before the folders of others.
    type: dict
    default: {}
  bases:
    description: The initial list per variable, for a file that does not set it yet. Our folders stand before it.
    type: dict
    default: {}
  variables:
    description: Variables and their values, which are strings or numbers.
    type: dict
    default: {}
  path:
    description: The file.
    type: str
    default: /etc/environment
  owner:
    description: User name or number. Left out, an existing file keeps its own.
    type: str
  group:
    description: Group name or number. Left out, an existing file keeps its own.
    type: str
  mode:
    description: Four octal digits in quotes. Left out, an existing file keeps its own.
    type: raw
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: Changes nothing.}
  diff_mode: {support: full, description: The file before and after.}
"""

EXAMPLES = r"""
- name: Put Open MPI on every session's path
  clusterctl.hpc.environment_file:
    lists:
      PATH: [/usr/local/openmpi/bin]
      LD_LIBRARY_PATH: [/usr/local/openmpi/lib]
    bases:
      PATH: /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    variables:
      OMP_NUM_THREADS: 1
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

from functools import partial
from typing import Any, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import file_stage, file_transaction, text_edit


def _text_of(name: str, value: Any) -> str:
    """Return a variable's value as text.

    Raises:
        file_transaction.StageError: it is not a string or a number. YAML's yes, no, on and off are booleans.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise file_transaction.StageError(
            f"The value of {name} is {value!r}, which is not a string or a number; put it in quotes."
        )
    return str(value)


def _folders_of(name: str, value: Any) -> List[str]:
    if not isinstance(value, list) or not all(isinstance(folder, str) for folder in value):
        raise file_transaction.StageError(f"The folders for {name} are {value!r}, which is not a list of paths.")
    return value


def wanted_of(given: Dict[str, Any]) -> text_edit.Environment:
    """Return what the arguments ask for.

    Raises:
        file_transaction.StageError: a value has the wrong type.
    """
    return text_edit.Environment(
        paths={name: _folders_of(name, value) for name, value in given["lists"].items()},
        variables={name: _text_of(name, value) for name, value in given["variables"].items()},
        bases={name: _text_of(name, value) for name, value in given["bases"].items()},
    )


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "lists": {"type": "dict", "default": {}},
            "bases": {"type": "dict", "default": {}},
            "variables": {"type": "dict", "default": {}},
            "path": {"type": "str", "default": "/etc/environment"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "mode": {"type": "raw"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = given["path"]
    file_stage.run(
        module,
        lambda: [
            file_transaction.Entry(
                path=path,
                state="edit",
                edit=partial(text_edit.set_environment, wanted=wanted_of(given)),
                what="variables",
                **file_transaction.attributes(path, given),
            )
        ],
    )


if __name__ == "__main__":
    main()
