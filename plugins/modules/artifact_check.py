# SPDX-License-Identifier: Apache-2.0
"""Run programs of an installed artifact and compare what they say."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_check
short_description: Run programs of an installed artifact and compare what they say
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Runs each command to its end and requires that it succeeds and that its output holds every expected text.
  - C(@LINK@) stands for the artifact's link and C(@REAL@) for the folder that the link names, so that an output can be
    held against the very version that is switched on.
options:
  name:
    description: Name of the artifact, for messages.
    type: str
    required: true
  link:
    description: Path of the artifact's link.
    type: str
    required: true
  environment:
    description: Variables besides PATH, HOME and LC_ALL.
    type: dict
    default: {}
  timeout_s:
    description: Seconds after which a command is ended and counts as failed.
    type: int
    default: 60
  checks:
    description: Commands and what their output must hold.
    type: list
    elements: dict
    required: true
    suboptions:
      argv:
        description: The command as tokens.
        type: list
        elements: str
        required: true
      stdin:
        description: Text that the command reads from its standard input, for example a program.
        type: str
        default: ""
      expect:
        description: Texts that must all be in the output.
        type: list
        elements: str
        default: []
attributes:
  check_mode:
    description: Runs all the same, since it only looks.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Prove that the program runs
  clusterctl.hpc.artifact_check:
    name: demo
    link: /usr/local/demo
    checks:
      - argv: ["@LINK@/bin/demo", --version]
        expect: ["1.0"]
"""

RETURN = r"""
outputs: {description: What each command said., type: list, returned: success}
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

_TAIL_LINES = 10
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_check(argv: List[str], environment: Dict[str, str], timeout_s: int, given: str = "") -> "tuple[int, str]":
    """Return a command's exit code and output; past its time it and its children are killed, and the code is 124."""
    process = subprocess.Popen(
        argv,
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(given.encode() or None, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, output.decode(errors="replace")
    return process.returncode, output.decode(errors="replace")


def main() -> None:
    """Run every check and fail with the first that is not as expected."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "link": {"type": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "timeout_s": {"type": "int", "default": 60},
            "checks": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "argv": {"type": "list", "elements": "str", "required": True},
                    "stdin": {"type": "str", "default": ""},
                    "expect": {"type": "list", "elements": "str", "default": []},
                },
            },
        },
        supports_check_mode=True,
    )
    parameters: Dict[str, Any] = module.params
    link = parameters["link"]
    real = os.path.realpath(link)

    def filled(text: str) -> str:
        return text.replace("@LINK@", link).replace("@REAL@", real)

    environment = {"PATH": _PATH, "HOME": str(Path.home()), "LC_ALL": "C"}
    environment.update({name: str(value) for name, value in parameters["environment"].items()})
    outputs = []
    for check in parameters["checks"]:
        argv = [filled(token) for token in check["argv"]]
        try:
            code, output = run_check(argv, environment, parameters["timeout_s"], check["stdin"])
        except OSError as error:
            module.fail_json(msg=f"{parameters['name']}: {argv[0]} could not be started ({error.strerror}).")
        tail = "\n".join(output.splitlines()[-_TAIL_LINES:])
        if code:
            why = f"did not end within {parameters['timeout_s']} s" if code == 124 else f"ended with {code}"  # noqa: PLR2004
            module.fail_json(msg=f"{parameters['name']}: '{' '.join(argv)}' {why}; it said:\n{tail}")
        missing = [text for text in map(filled, check["expect"]) if text not in output]
        if missing:
            module.fail_json(
                msg=f"{parameters['name']}: '{' '.join(argv)}' did not say {missing[0]!r}; its last lines are:\n{tail}"
            )
        outputs.append(tail)
    module.exit_json(changed=False, changes=[], watch=[], outputs=outputs)


if __name__ == "__main__":
    main()
