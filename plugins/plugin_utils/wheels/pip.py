# SPDX-License-Identifier: Apache-2.0
"""Run pip on the controller, and explain in one sentence why it failed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .target import Target

from .errors import PipFailedError, WheelError

_PIP_TIMEOUT_S = 1800

# What pip says if the index did not answer; a package that the index lacks gives other words.
NO_ANSWER = re.compile(r"Retrying \(Retry|Could not fetch URL|ConnectionError|Max retries exceeded|ReadTimeoutError")

_NOTHING_FITS = re.compile(r"^ERROR: No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)

_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")

# pip ends with the process that started it (PR_SET_PDEATHSIG, SIGTERM), so a cancelled run leaves no pip behind. It
# judges markers by its own Python, even with --python-version (pypa/pip #6117), so the node's answers replace its own.
_RUN_PIP = """
import ctypes, json, runpy, sys
ctypes.CDLL(None).prctl(1, 15)
environment = json.loads(sys.argv.pop(1))
if environment:
    from pip._vendor.packaging import markers
    if callable(getattr(markers, "default_environment", None)):
        markers.default_environment = lambda: dict(environment)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def lacking(output: str) -> str:
    """Return the canonical name of the package without a fitting version, '' if pip failed for another reason.

    Args:
        output: what the failed pip wrote.
    """
    nothing = _NOTHING_FITS.search(output)
    if nothing is None or (NO_ANSWER.search(output) and "from versions: none" in output):
        return ""
    return str(canonicalize_name(re.split(r"[^A-Za-z0-9._-]", nothing.group(1).strip(), maxsplit=1)[0]))


def explain(output: str, target: Target | None, variable: str) -> str:
    """Return a sentence that explains why pip failed.

    Args:
        output: what pip wrote.
        target: the target of the wheels; None for a source archive.
        variable: the user's variable that named the packages.
    """
    nothing = _NOTHING_FITS.search(output)
    no_answer = bool(NO_ANSWER.search(output))
    place = f"put what is needed into a folder of the controller and name it in {_folder_variable(variable)}"
    if no_answer and (nothing is None or "from versions: none" in output):
        what = f" while looking for {nothing.group(1)}" if nothing else ""
        return (
            f"The package index of this controller's pip configuration did not answer{what}, and the cache does not"
            f" hold what is needed; repair the way to the index, or {place}."
        )
    if nothing:
        found = _VERSIONS.search(output)
        offered = [] if not found or found.group(1) == "none" else found.group(1).split(", ")
        last = f"; the newest that fit are {', '.join(offered[-3:])}" if offered else ""
        also = " One index did not answer, or late; if it has what is missing, run again." if no_answer else ""
        fits = f"no wheel for {target} (platform {target.platform})" if target else "no source archive"
        return (
            f"{variable}: the index offers {fits} of {nothing.group(1)}{last}. Name a version that has one, or build"
            f" the wheel and {place}.{also}"
        )
    if "DO NOT MATCH THE HASHES" in output:
        names = ", ".join(re.findall(r"^\s+(\S+) from ", output, re.MULTILINE)) or "a package"
        return (
            f"The index's file of {names} is not the one that was pinned (its sha256 differs); it was not used."
            f" If the change is known and wanted, pin it anew ({variable}, or remove the lock that names it)."
        )
    if "ResolutionImpossible" in output or "conflicting dependencies" in output:
        cause = "; ".join(re.findall(r"^    (\S.* depends on .*|The user requested .*)$", output, re.MULTILINE)[:4])
        unfit = re.search(r"no matching distributions available[^\n]*\n    (\S+)", output)
        also = f"; of {unfit.group(1)} no wheel for {target} satisfies them all" if unfit and target else ""
        return f"{variable}: these requirements exclude each other: {cause or 'see pip'}{also}. Loosen one of them."
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{variable}: pip failed on this controller: {' '.join(lines[-3:])}"


def _folder_variable(variable: str) -> str:
    role = re.match(r"[a-z0-9_]+?(?=_(?:requirements|sha256|framework_version|version|build_requirements)$)", variable)
    return f"{role.group(0)}_wheel_dir" if role else "the role's wheel folder"


def run_pip(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run pip of this Python.

    Args:
        arguments: of pip.
        environment: the variables of markers on the node; {} for those of the controller.

    Raises:
        PipFailedError: pip ended with an error.
        WheelError: pip is not installed, or did not end in time.
        OSError: the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise WheelError(
            f"The Python that runs ansible ({sys.executable}) has no pip, which fetches wheels for the nodes; add it,"
            f" for example with 'uv pip install --python {sys.executable} pip' or the distribution's python3-pip."
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN_PIP, json.dumps(environment), *_PIP_OPTIONS, *arguments],
            env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1", "COLUMNS": "200", "PIP_PROGRESS_BAR": "off"},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"pip did not end within {_PIP_TIMEOUT_S} s on this controller.") from error
    if done.returncode:
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise PipFailedError(done.stdout)


_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")


def options_for(target: Target) -> list[str]:
    """Return the options of pip that select wheels for a target."""
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
    return options + [f"--platform={tag}" for tag in target.tags()]
