# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Switch the links of several installed artifacts together: all of them, or none."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_switch
short_description: Switch the links of several installed artifacts together
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Phase V(check) compares every folder with its marker and its manifest. It changes nothing. With O(while_busy) false,
    it also fails where ranks run, or processes that use a folder which a link is about to leave.
  - Phase V(switch) stages every new link beside the old one, and then puts each in its place by one rename. Where a
    rename fails, the links that were switched before it are switched back.
  - No folder is installed or removed.
options:
  links:
    description:
      - Path of each link, with the folder to which it is to lead. An empty folder removes the link.
    type: dict
    required: true
  phase:
    description: What to do.
    type: str
    choices: [check, switch]
    default: switch
  while_busy:
    description: Whether phase V(check) accepts jobs on the host.
    type: bool
    default: true
  host:
    description: Name of the host, for messages.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Reports which links would be switched.}
  diff_mode: {support: full, description: Shows the target of each link before and after.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
before: {description: The folder to which each link led before; empty without a link., type: dict, returned: success}
problems: {description: "Jobs in the way: host, check, problem, cure.", type: list, returned: where jobs run}
switched: {description: The links that changed., type: list, returned: success}
changes: {description: A short phrase for each change., type: list, returned: success}
watch: {description: States of paths that hold from now on., type: list, returned: success}
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_links, audited_module, disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state

_ENDING_S = 30.0  # a build that a stopped run had in the background may still be ending


class SwitchError(Exception):
    """The links cannot be switched; the message is one sentence with the cure."""


def tree_of(link: str) -> str:
    """Return the folder to which a link leads; '' without a link.

    Raises:
        SwitchError: something else stands in the place of the link.
    """
    problem = artifact_links.problem(link)
    if problem:
        raise SwitchError(problem)
    return artifact_links.tree_of(link)


def check(links: Dict[str, str]) -> List[Dict[str, Any]]:
    """Return the states of all folders and links, as they are once the links are switched.

    Raises:
        SwitchError: a folder is missing or damaged, or a path is not to be touched.
    """
    watch = []
    for link, tree in links.items():
        passed = path_state.link_of_another(str(Path(link).parent))
        if passed:
            raise SwitchError(f"{passed} is a link that another user could have set; remove it and run again.")
        tree_of(link)
        if not tree:
            continue
        state = path_state.watch_state(tree, "artifact")
        if state["kind"] != "artifact":
            raise SwitchError(f"{tree} is missing, or its installation was never finished.")
        if isinstance(state["files"], str):
            raise SwitchError(f"{tree} is damaged: {state['files']}.")
        watch += [state, {"path": link, "kind": "link", "target": artifact_links.target_of(link, tree)}]
    return watch


def switch(changes: Dict[str, Tuple[str, str]]) -> None:
    """Switch links, all or none.

    Args:
        changes: by link, the folder to which it leads now and the one to which it is to lead; '' is no link.

    Raises:
        OSError: a link could not be switched; all links lead where they led before.
    """
    staged: Dict[str, str] = {}
    done: List[str] = []
    try:
        for link, (_unused, after) in changes.items():
            staged[link] = artifact_links.stage(link, after) if after else ""
        for link in changes:
            artifact_links.put(link, staged.pop(link))
            done.append(link)
    except OSError:
        for link in reversed(done):
            before = changes[link][0]
            with suppress(OSError):
                artifact_links.put(link, artifact_links.stage(link, before) if before else "")
        raise
    finally:
        for path in filter(None, staged.values()):
            with suppress(OSError):
                Path(path).unlink()
    for folder in {str(Path(link).parent) for link in changes}:
        artifact_links.names_in(folder)  # a power cut does not undo a switch that was reported


def run(links: Dict[str, str], *, really: bool) -> Dict[str, Any]:
    """Return the module's result; ``really`` says whether links are switched.

    Raises:
        SwitchError: see :func:`check`.
        OSError: see :func:`switch`.
    """
    watch = check(links)
    # what a killed build borrowed does not count as the link of before
    if really and not artifact_links.give_back(_ENDING_S):
        raise SwitchError("A build on this host still uses the links; wait until it has ended, then run again.")
    before = {link: tree_of(link) for link in links}
    changes = {link: (before[link], tree) for link, tree in links.items() if before[link] != tree}
    if changes and really:
        switch(changes)
    phrases = [
        f"{link} -> {artifact_links.target_of(link, tree)}" if tree else f"removed {link}"
        for link, (_unused, tree) in changes.items()
    ]
    shown = ["".join(f"{link} -> {pair[side]}\n" for link, pair in changes.items()) for side in (0, 1)]
    return {
        "changed": bool(changes),
        "changes": phrases,
        "switched": list(changes),
        "before": before,
        "watch": watch,
        "diff": {"before": shown[0], "after": shown[1]} if changes else {},
    }


def refusal(host: str, error: OSError) -> str:
    """Return what is said where the disk refused a link."""
    return f"{disk_files.sentence(host, error).rstrip('.')}. Every link leads where it led before."


def main() -> None:
    """Run one phase."""
    module = audited_module.AuditedModule(
        argument_spec={
            "links": {"type": "dict", "required": True},
            "phase": {"type": "str", "choices": ["check", "switch"], "default": "switch"},
            "while_busy": {"type": "bool", "default": True},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    links = {str(link): str(tree) for link, tree in module.params["links"].items()}
    host = module.params["host"]
    try:
        if module.params["phase"] == "check":
            check(links)
            if not module.params["while_busy"]:
                artifact_links.refuse(links, host)
            before = {link: tree_of(link) for link in links}
            module.exit_json(changed=False, changes=[], watch=[], switched=[], before=before)
        module.exit_json(**run(links, really=not module.check_mode))
    except artifact_links.JobsError as error:
        module.fail_json(msg=str(error), problems=error.problems)
    except SwitchError as error:
        module.fail_json(msg=f"{host}: {error}")
    except OSError as error:
        module.fail_json(msg=refusal(host, error))


if __name__ == "__main__":
    main()
