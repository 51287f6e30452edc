# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Log in to other nodes by ssh, as a job does, to prove that the mesh works."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mesh_login
short_description: Log in to other nodes as a job would, and name the nodes that refuse
version_added: 0.1.0
description:
  - Runs C(ssh -o BatchMode=yes NAME true) as the user, several at a time, each with a deadline.
  - Asks ssh which settings win over those of the mesh, and warns of each with its file and line. A login that would go
    through one machine again and again is not tried.
  - Fails with one sentence for each failed login. The sentence names both ends.
  - With O(tolerate), it fails on no login. A second task then tries the targets again that still take part in the run.
    A target that died is not a fault of the nodes that logged in to it.
options:
  origin:
    description: This node's name.
    type: str
    required: true
  user:
    description: The user who logs in.
    type: str
    required: true
  targets:
    description: The nodes to log in to, each with C(name), C(address), C(port) and C(obstacles).
    type: list
    elements: dict
    required: true
  timeout_s:
    description: Seconds that one login may take.
    type: int
    default: 20
  tolerate:
    description: Return the failed logins without failing.
    type: bool
    default: false
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: "Tries no login, because the files are not in place yet."}
  diff_mode: {support: none, description: The module changes nothing.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
failures: {description: A sentence for each failed login., type: list, elements: str, returned: always}
refused: {description: The names of the nodes whose login failed., type: list, elements: str, returned: always}
logins: {description: The names of the nodes that let the user in., type: list, elements: str, returned: always}
"""

import pwd
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import command, login_probe, mesh_rules, user_identity

_AT_ONCE = 8
_MOST_SAID = 4096  # characters


def login_argv(name: str, timeout_s: int) -> List[str]:
    """Return the command that a launcher would use, with ``true`` instead of its daemon."""
    words = [*login_probe.NOT_INTERACTIVE, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}"]
    return ["ssh", "-n", *words, "--", name, "true"]


def overruled(user: str, targets: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return what wins over the mesh's settings for this user: some targets show it; [] where ssh does not tell."""
    names = [str(target["name"]) for target in targets[: login_probe.COMPARED]]

    def work() -> Dict[str, Any]:
        return {"found": [one for name in names for one in login_probe.overruled(name, login_probe.MESH[0])]}

    return list(_as_user(user, work).get("found", []))


def ways(user: str, failed: Sequence[str]) -> Dict[str, str]:
    """Return by target a clause about the proxy that the user's ssh takes there; some of the failed targets show it."""
    names = failed[: login_probe.COMPARED]
    return _as_user(user, lambda: {name: login_probe.way_words(name) for name in names})


def _as_user(user: str, work: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    try:
        return user_identity.in_child(pwd.getpwnam(user), work)
    except (OSError, user_identity.IdentityError, subprocess.TimeoutExpired):
        return {}  # the logins themselves tell then


def login_all(
    user: str,
    targets: Sequence[Mapping[str, Any]],
    timeout_s: int,
    without_end: Mapping[str, str] = MappingProxyType({}),
) -> List[Tuple[Mapping[str, Any], str]]:
    """Try all targets and return the failed ones, each with the end of what ssh wrote.

    Args:
        user: the user who logs in.
        targets: the nodes.
        timeout_s: time limit of one login.
        without_end: by target the setting that leads ssh through one machine again and again; it is not tried.

    Raises:
        KeyError: there is no such user.
    """
    become = command.account(user)
    environment = login_probe.environment(user)

    def tried(target: Mapping[str, Any]) -> Tuple[Mapping[str, Any], str]:
        if str(target["name"]) in without_end:
            return target, login_probe.ENDLESS.format(without_end[str(target["name"])])
        done = command.run(
            login_argv(str(target["name"]), timeout_s), timeout_s, environment, whole=True, become=become
        )
        if done.status == command.TIMED_OUT:
            return target, f"ssh timed out after {timeout_s} s"
        return target, "" if done.ok else done.errors[-_MOST_SAID:] or f"ssh ended with status {done.status}"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [(target, said) for target, said in pool.map(tried, targets) if said]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "origin": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "targets": {"type": "list", "elements": "dict", "required": True},
            "timeout_s": {"type": "int", "default": 20},
            "tolerate": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    nothing: Dict[str, Any] = {
        "changed": False,
        "changes": [],
        "watch": [],
        "failures": [],
        "refused": [],
        "logins": [],
    }
    if module.check_mode:
        module.exit_json(**nothing)
    try:
        wins = overruled(given["user"], given["targets"])
        without_end = {
            str(one["target"]): login_probe.overruled_words(one) for one in wins if one["setting"] in login_probe.WAYS
        }
        failed = login_all(given["user"], given["targets"], given["timeout_s"], without_end)
        taken = ways(
            given["user"], [str(one["name"]) for one, _unused in failed if str(one["name"]) not in without_end]
        )
    except (KeyError, OSError) as error:
        module.fail_json(msg=f"ssh could not be started as {given['user']}: {error}.", **nothing)
    failures = [
        mesh_rules.login_failure(
            given["origin"], target, given["user"], said.rstrip() + taken.get(str(target["name"]), "")
        )
        for target, said in failed
    ]
    for what in dict.fromkeys(
        login_probe.overruled_words(one) for one in wins if one["setting"] not in login_probe.WAYS
    ):
        module.warn(mesh_rules.overruled_warning(given["origin"], given["user"], what))
    refused = [str(target["name"]) for target, _unused in failed]
    logins = [str(target["name"]) for target in given["targets"] if str(target["name"]) not in refused]
    result = {**nothing, "failures": failures, "refused": refused, "logins": logins}
    if failures and not given["tolerate"]:
        module.fail_json(msg=" ".join(failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
