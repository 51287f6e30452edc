# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Run programs of installed artifacts and check their output."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_check
short_description: Run programs of installed artifacts and check their output
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Runs each command to its end. The command must succeed and its output must hold every expected text.
  - C(@LINK@) stands for the artifact's link and C(@REAL@) for the link's target, so an expected text can name the
    version in use.
  - If the module runs as root, the commands run as an unprivileged user id without an account.
  - With O(artifacts[].stands_on), the host remembers a successful proof. It is repeated when the commands, the targets
    of the links, a file of the artifacts, the kernel or the C library change. A failed proof is always repeated.
  - All artifacts are proved in one call. Where one fails, only those that stand on it are left out.
options:
  artifacts:
    description: What to prove.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the artifact, for messages.
        type: str
        required: true
      link:
        description: Path of the artifact's link.
        type: str
        required: true
      environment:
        description: Variables in addition to PATH, HOME, TMPDIR, USER, LOGNAME and LC_ALL.
        type: dict
        default: {}
      stands_on:
        description:
          - Links of the artifacts on which the outcome depends. O(artifacts[].link) always counts as one of them.
          - The caller makes sure that their files are as installed. An empty list repeats the proof each time.
        type: list
        elements: str
        default: []
      timeout_s:
        description: Seconds after which a command is ended and counts as failed.
        type: int
        default: 60
      checks:
        description: Commands and the texts that their output must hold.
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
  check_mode: {support: full, description: "Runs as usual, because it changes nothing."}
  diff_mode: {support: none, description: The module changes no text.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
artifacts:
  description:
    - By name, the C(outputs) of each command in this run or in the remembered proof, and whether the latter was used
      (C(proved_before)). Of one that failed, C(msg) says why. Of one that was not tried, C(left_out) names the artifact
      that failed before.
  type: dict
  returned: always
"""

import hashlib
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, build_user, command, disk_files

_TAIL_LINES = 10
_PROOFS = "/var/lib/clusterctl/proofs"
_WORK = "/var/tmp"  # noqa: S108 - a fresh folder is made inside


def circumstances(parameters: Dict[str, Any]) -> str:
    """Return the digest of all that the outcome of a proof depends on."""
    links = sorted({parameters["link"], *parameters["stands_on"]})
    known = {
        "checks": parameters["checks"],
        "environment": parameters["environment"],
        "trees": {link: [os.path.realpath(link), content_of(os.path.realpath(link))] for link in links},
        "kernel": os.uname().release,
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def content_of(tree: str) -> str:
    """Return a digest that another content of any file of a tree changes, without reading the files.

    A write changes a file's ctime, also where it leaves size and mtime as they were.
    """
    total = hashlib.sha256()
    try:
        manifest = artifact.manifest_of(tree)
        names = [entry.path for entry in artifact.parse_manifest(manifest)]
    except artifact.ArtifactError:
        return ""
    total.update(manifest)
    for name in names:
        try:
            found = os.lstat(f"{tree}/{name}")
            total.update(f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n".encode())
        except OSError:
            total.update(b"missing\n")
    return total.hexdigest()


def recall(name: str, digest: str) -> Optional[List[str]]:
    """Return the outputs of a remembered proof; None without one."""
    try:
        proof = json.loads(Path(_PROOFS, f"{name}-{digest[:16]}.json").read_bytes())
        return list(proof["outputs"]) if proof["of"] == digest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(name: str, digest: str, outputs: List[str]) -> None:
    """Remember a proof; after an error the next run repeats it."""
    with suppress(OSError):
        folder = Path(_PROOFS)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        disk_files.write(folder / f"{name}-{digest[:16]}.json", json.dumps({"of": digest, "outputs": outputs}))


class CheckFailedError(Exception):
    """A check failed; the message names the command and its last lines."""


def run_checks(parameters: Dict[str, Any]) -> List[str]:
    """Run every check in order and return the last lines of each output.

    Raises:
        CheckFailedError: a command cannot be started, fails, or lacks an expected text.
    """
    if os.geteuid() != 0:
        return _run_as(None, parameters, {"HOME": str(Path.home())})
    with build_user.space(_WORK, parameters["name"]) as space, build_user.owning(space):
        return _run_as(space.uid, parameters, space.environment())


def _run_as(uid: Optional[int], parameters: Dict[str, Any], own: Dict[str, str]) -> List[str]:
    name, link = parameters["name"], parameters["link"]
    real = os.path.realpath(link)

    def filled(text: str) -> str:
        return text.replace("@LINK@", link).replace("@REAL@", real)

    environment = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C", **own}
    environment.update({name: str(value) for name, value in parameters["environment"].items()})
    outputs = []
    for check in parameters["checks"]:
        argv = [filled(token) for token in check["argv"]]
        done = build_user.run_check(argv, environment, parameters["timeout_s"], check["stdin"], uid)
        tail = "\n".join(done.output.splitlines()[-_TAIL_LINES:])
        shown, last = f"{name}: '{' '.join(argv)}'", f"; its last lines are:\n{tail}" if tail else "."
        if not done.ok:
            ended = done.errors.rstrip(".") or f"It ended with {done.status}"
            raise CheckFailedError(f"{shown} failed. {ended}{last}")
        missing = [text for text in map(filled, check["expect"]) if text not in done.output]
        if missing:
            raise CheckFailedError(f"{shown} did not write {missing[0]!r}{last}")
        outputs.append(tail)
    return outputs


def prove(parameters: Dict[str, Any], *, keep: bool) -> Dict[str, Any]:
    """Return the outputs of an artifact's commands, of this run or of a remembered proof; ``keep`` remembers them.

    Raises:
        CheckFailedError: see :func:`run_checks`.
    """
    digest = circumstances(parameters)
    proved = recall(parameters["name"], digest) if parameters["stands_on"] else None
    if proved is not None:
        return {"outputs": proved, "proved_before": True}
    outputs = run_checks(parameters)
    if parameters["stands_on"] and keep:
        remember(parameters["name"], digest, outputs)
    return {"outputs": outputs, "proved_before": False}


def prove_all(artifacts: Sequence[Dict[str, Any]], *, keep: bool) -> Dict[str, Dict[str, Any]]:
    """Return the result of each artifact by name; what stands on one that failed is left out."""
    failed: Dict[str, str] = {}  # name of the cause, by link
    answers: Dict[str, Dict[str, Any]] = {}
    for one in artifacts:
        name = one["name"]
        cause = next((failed[link] for link in one["stands_on"] if link in failed), "")
        if cause:
            answer: Dict[str, Any] = {"left_out": cause}
        else:
            try:
                answer = prove(one, keep=keep)
            except (CheckFailedError, artifact.ArtifactError) as error:
                answer = {"failed": True, "msg": str(error)}
            except OSError as error:
                answer = {"failed": True, "msg": disk_files.sentence(name, error)}
        if "outputs" not in answer:
            failed[one["link"]] = cause or name
        answers[name] = answer
    return answers


_ARTIFACT: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "link": {"type": "str", "required": True},
    "environment": {"type": "dict", "default": {}},
    "stands_on": {"type": "list", "elements": "str", "default": []},
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
}


def main() -> None:
    """Run every check; an artifact fails at the first one with an unexpected result."""
    module = AnsibleModule(
        argument_spec={"artifacts": {"type": "list", "elements": "dict", "required": True, "options": _ARTIFACT}},
        supports_check_mode=True,
    )
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, build_user.abandon)  # the commands end with the module
    try:
        answers = prove_all(module.params["artifacts"], keep=not module.check_mode)
    except build_user.Abandoned:
        os._exit(1)  # the result has no reader; the commands are ended by now
    failures = [str(answer["msg"]) for answer in answers.values() if answer.get("failed")]
    if failures:
        module.fail_json(msg="\n".join(failures), artifacts=answers)
    module.exit_json(changed=False, changes=[], watch=[], artifacts=answers)


if __name__ == "__main__":
    main()
