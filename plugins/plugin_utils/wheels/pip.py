# SPDX-License-Identifier: Apache-2.0
"""Run pip on the controller, and explain in one sentence why it failed."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .packages import Target

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine

from .indexes import told_pip
from .packages import PipFailedError, WheelError
from .requirements import canonicalize_name

_PIP_TIMEOUT_S = 1800

# pip reads a page of an index whole, and a page may have no end. Of the memory that is left, pip gets a part.
_MIB = 1 << 20
_MOST_MEMORY_MIB, _LEAST_MEMORY_MIB, _PART_OF_MEMORY = 4096, 512, 0.75
_MOST_FILE_MIB = 16 * 1024  # the largest wheels have 4 GiB
_MOST_OUTPUT_MIB = 64  # with -vv, a line for each file of an index
_BLOCK = 1 << 16

_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")
_PIP_ENVIRONMENT = {"LC_ALL": "C", "NO_COLOR": "1", "COLUMNS": "200", "PIP_PROGRESS_BAR": "off"}

# Options of pip that add sources beside the index.
_MORE_SOURCES = ("extra-index-url", "find-links")

# What pip says if the index did not answer; a package that the index lacks gives other words.
NO_ANSWER = re.compile(r"Retrying \(Retry|Could not fetch URL|ConnectionError|Max retries exceeded|ReadTimeoutError")

# What is added to pip's words if the index answered with a page that is not an index; the host follows.
_NOT_AN_INDEX = "clusterctl: a page that names no file came from"

# What is added if the index refuses this controller; the code and the host follow.
_REFUSED = "clusterctl: an index refuses with"

_REFUSALS = re.compile(
    r"WARNING: (?P<login>401) Error, Credentials not correct for (?P<index>\S+)"
    r"|Could not fetch URL \S+: (?P<code>40[13]) Client Error: .* for url: (?P<page>\S+)"
    r"|HTTP error (?P<status>4\d\d) while getting (?P<file>\S+)"
)

_FETCHED = re.compile(r"^\s*Fetched page (\S+)", re.MULTILINE)

_LINK = re.compile(r"^\s*(?:Found link|Skipping link).*\.(?:whl|zip|tar\.\w+|tgz|egg|exe)\b", re.MULTILINE)

_NOT_A_WHEEL = re.compile(r"^ERROR: Wheel '([^']+)' located at .* is invalid", re.MULTILINE)

_NOTHING_FITS = re.compile(r"^ERROR: No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)

_CAUSE = re.compile(r"^    (\S.* depends on .*|The user requested .*)$", re.MULTILINE)

_CONSTRAINT = "The user requested (constraint) "

_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")

_NO_MEMORY = re.compile(r"^\s*MemoryError\b|Cannot allocate memory", re.MULTILINE)

_LARGE_FILE = os.strerror(errno.EFBIG)

_WITHOUT_END = (
    "as where an index answers slowly or without end; see which index-url 'pip config list' names, and repair it."
)

# On Linux, pip ends with the process that started it (PR_SET_PDEATHSIG, SIGTERM): a cancelled run leaves no pip. It
# judges markers by its own Python, even with --python-version (pypa/pip #6117), so the node's answers replace its own.
# Of a source archive, pip asks for its metadata: it would install the newest build requirements of the index, and run
# them and the archive here (pypa/pip #1884). The archive is pinned, so its name and version are known without.
_RUN_PIP = """
import ctypes, json, os, resource, runpy, sys, tempfile
limits = json.loads(sys.argv.pop(1))
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, 15)
    for name, most in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
environment = json.loads(sys.argv.pop(1))
if environment:
    from pip._vendor.packaging import markers
    if callable(getattr(markers, "default_environment", None)):
        markers.default_environment = lambda: dict(environment)
if "--only-binary=:all:" not in sys.argv:
    from pip._internal.distributions.sdist import SourceDistribution
    if not callable(getattr(SourceDistribution, "prepare_distribution_metadata", None)):
        sys.exit("This pip is not known, and it could run a source archive here; install another version of pip.")
    def pinned(self, *unused, **more):
        wanted = self.req.req
        stem = self.req.link.filename if self.req.link else ""  # of an archive at an address of its own
        stem = stem[: -len(".tar.gz")] if stem.endswith(".tar.gz") else stem
        version = next((each.version for each in wanted.specifier), stem.rpartition("-")[2])
        folder = os.path.join(tempfile.mkdtemp(), wanted.name.replace("-", "_") + "-" + version + ".dist-info")
        os.mkdir(folder)
        with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as stream:
            stream.write("Metadata-Version: 2.1\\nName: " + wanted.name + "\\nVersion: " + version + "\\n")
        self.req.metadata_directory = folder
    SourceDistribution.prepare_distribution_metadata = pinned
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def lacking(output: str) -> str:
    """Return the canonical name of the package without a fitting version, '' if pip failed for another reason.

    Args:
        output: what the failed pip wrote.
    """
    if _NOT_AN_INDEX in output:
        return ""
    nothing = _NOTHING_FITS.search(output)
    if nothing is None:
        return "" if NO_ANSWER.search(output) else _constrained(output)
    if NO_ANSWER.search(output) and "from versions: none" in output:
        return ""
    return _name_of(nothing.group(1).strip())


def none_fits(output: str) -> bool:
    """Tell whether the index seems to have no version at all of a package.

    Args:
        output: what the failed pip wrote.
    """
    return "(from versions: none)" in output or bool(_constrained(output))


def _constrained(output: str) -> str:
    """Return the canonical name of a package that has no version which fits both a request and a constraint.

    A line ``constraint = FILE`` in pip's configuration makes pip call a version that the index lacks a conflict.
    """
    if "ResolutionImpossible" not in output:
        return ""
    causes = _CAUSE.findall(output)
    limits = {_name_of(cause.removeprefix(_CONSTRAINT)) for cause in causes if cause.startswith(_CONSTRAINT)}
    asked = [cause for cause in causes if not cause.startswith(_CONSTRAINT)]
    if len(asked) != 1 or len(limits) != 1:
        return ""
    name = _name_of(asked[0].rpartition(" depends on ")[2].removeprefix("The user requested "))
    return name if {name} == limits else ""


def _name_of(requirement: str) -> str:
    return str(canonicalize_name(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]))


def away(output: str) -> bool:
    """Tell whether the index did not answer, or answered with a page that is not an index.

    Args:
        output: what the failed pip wrote.
    """
    return bool(NO_ANSWER.search(output)) or _NOT_AN_INDEX in output


def not_an_index(verbose: str) -> str:
    """Return the line to add to pip's words if the index refuses, or its page names no file; '' otherwise.

    A login page or an error page of a mirror comes with the code 200, so pip takes it for an index without files. An
    index that lacks a package answers with 404, and pip fetches no page.

    Args:
        verbose: what the failed pip wrote with ``-vv``.
    """
    refused = _refused(verbose)
    if refused:
        return f"\n{_REFUSED} {' '.join(refused)}\n"
    page = _FETCHED.search(verbose)
    if page is None or _LINK.search(verbose):
        return ""
    return f"\n{_NOT_AN_INDEX} {urlsplit(page.group(1)).hostname or page.group(1)}\n"


def other_file(output: str) -> tuple[str, str]:
    """Return the canonical name and file name of a package whose sha256 differs from the pinned one, '' without one.

    Args:
        output: what the failed pip wrote.
    """
    if "DO NOT MATCH THE HASHES" not in output:
        return "", ""
    found = re.search(r"^\s+(\S+) from (\S+)", output, re.MULTILINE)
    if found is None:
        return "", ""
    return _name_of(found.group(1)), unquote(urlsplit(found.group(2)).path).rpartition("/")[2]


def more_indexes(values: Mapping[str, str]) -> list[str]:
    """Return the hosts of remote package sources that ``pip download`` would ask beside its index.

    Args:
        values: of :func:`.indexes.told_pip`.
    """
    sources = [(option, urlsplit(address)) for option in _MORE_SOURCES for address in values.get(option, "").split()]
    return [f"{option} on {found.hostname}" for option, found in sources if found.scheme in {"http", "https"}]


def refuse_more_indexes(variable: str) -> None:
    """Refuse a configuration in which several remote indexes could offer a package.

    Args:
        variable: the user's variable that names the packages.

    Raises:
        WheelError: pip's configuration names a second remote source.
    """
    found = more_indexes(told_pip())
    if found:
        raise WheelError(
            f"{variable}: pip's configuration on this controller names a second package index"
            f" ({', '.join(dict.fromkeys(found))}), and these packages have no pinned sha256. Pip takes the highest"
            " version of any index, so a package of the same name on the other one would run as root on the nodes"
            f" (dependency confusion). Set one index-url that serves both, or {_own_folder(variable)}."
        )


def explain(output: str, target: Target | None, variable: str) -> str:
    """Return a sentence that explains why pip failed.

    Args:
        output: what pip wrote.
        target: the target of the wheels; None for a source archive.
        variable: the user's variable that named the packages.
    """
    nothing = _NOTHING_FITS.search(output)
    no_answer = bool(NO_ANSWER.search(output))
    place = _own_folder(variable)
    page = _page_of_html(output, variable) or _refusal(output, variable)
    if page:
        return page
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
        again = f"pin it anew ({variable}, or remove the lock that names it)"
        if variable.startswith("python_env_lock"):
            again = f"lock again ({variable})"
        return (
            f"The index's file of {names} is not the one that was pinned (its sha256 differs), and it is not used."
            f" Find out who changed it. Only if the new file is wanted, {again}."
        )
    if "ResolutionImpossible" in output or "conflicting dependencies" in output:
        cause = "; ".join(_CAUSE.findall(output)[:4])
        unfit = re.search(r"no matching distributions available[^\n]*\n    (\S+)", output)
        also = f"; of {unfit.group(1)} no wheel for {target} satisfies them all" if unfit and target else ""
        return f"{variable}: these requirements exclude each other: {cause or 'see pip'}{also}. Loosen one of them."
    lines = [line for line in output.splitlines() if line.strip()]
    said = re.sub(r"://[^/@\s]*@", "://", " ".join(lines[-3:]))
    return f"{variable}: pip failed on this controller: {said}"


def _refused(output: str) -> tuple[str, str] | None:
    """Return the code and the host of an index or a server that refuses; None without one."""
    told = re.search(rf"{re.escape(_REFUSED)} (\d+) (\S+)", output)
    if told:
        return told.group(1), told.group(2)
    found = _REFUSALS.search(output)
    if found is None:
        return None
    address = found["index"] or found["page"] or found["file"]
    return found["login"] or found["code"] or found["status"], urlsplit(address).hostname or "the server"


def _refusal(output: str, variable: str) -> str:
    """Return a sentence where an index or a server of a lock refuses, '' otherwise."""
    refused = _refused(output)
    if refused is None:
        return ""
    code, host = refused
    nothing = _NOTHING_FITS.search(output)
    direct = re.search(r"HTTP error \d+ while getting (\S+)", output)
    what = (
        nothing.group(1) if nothing else unquote(urlsplit(direct.group(1)).path).rpartition("/")[2] if direct else "it"
    )
    if code in ("401", "403"):
        return (
            f"{variable}: the package index on {host} refuses to give {what} to this controller (HTTP {code}); give it"
            " a login (index-url of pip's configuration, UV_INDEX_NAME_USERNAME and _PASSWORD of uv, or ~/.netrc), or"
            f" {_own_folder(variable)}."
        )
    return (
        f"{variable}: {host} does not have {what} (HTTP {code}), and neither does an index that pip or uv is told;"
        f" lock another version, or {_own_folder(variable)}."
    )


def _page_of_html(output: str, variable: str) -> str:
    """Return a sentence where the index answered with a page of HTML, '' otherwise."""
    place = _own_folder(variable)
    stranger = re.search(rf"{re.escape(_NOT_AN_INDEX)} (\S+)", output)
    if stranger:
        nothing = _NOTHING_FITS.search(output)
        package = nothing.group(1) if nothing else _constrained(output)
        what = f" of {package}" if package else ""
        return (
            f"The package index on {stranger.group(1)} answered with an HTML page that names no file{what}, such as a"
            " login or an error page of a mirror; open the index-url of pip's configuration from this controller and"
            f" repair it, or {place}."
        )
    unreadable = _NOT_A_WHEEL.search(output)
    if unreadable:
        return (
            f"{variable}: the index's file of {unreadable.group(1)} is not a wheel, such as an HTML page of a mirror;"
            f" it was not used. Repair the mirror, or {place}."
        )
    return ""


def _own_folder(variable: str) -> str:
    return f"put what is needed into a folder of the controller and name it in {_folder_variable(variable)}"


def _folder_variable(variable: str) -> str:
    asked = r"requirements|sha256|framework_version|version|build_requirements|lock"
    role = re.match(rf"[a-z0-9_]+?(?=_(?:{asked})(?:$| ))", variable)
    return f"{role.group(0)}_wheel_dir" if role else "the role's wheel folder"


def run_pip(
    arguments: Sequence[str], markers: Mapping[str, str], scratch: str, indexes: Mapping[str, str] | None = None
) -> None:
    """Run pip of this Python.

    Args:
        arguments: of pip.
        markers: the variables of markers on the node; {} for those of the controller.
        scratch: folder for pip's own files, which a killed pip leaves behind.
        indexes: variables of pip that replace the user's.

    Raises:
        PipFailedError: pip ended with an error.
        WheelError: pip is not installed, did not end in time, or needed more memory or output than it may have.
        OSError: the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise WheelError(
            f"The Python that runs ansible ({sys.executable}) has no pip, which fetches wheels for the nodes; add it,"
            f" for example with 'uv pip install --python {sys.executable} pip' or the distribution's python3-pip."
        )
    memory_mib = _memory_mib()
    limits = {"RLIMIT_DATA": memory_mib * _MIB, "RLIMIT_FSIZE": _MOST_FILE_MIB * _MIB}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN_PIP, json.dumps(limits), json.dumps(dict(markers)), *_PIP_OPTIONS, *arguments],
        env={**os.environ, **(indexes or {}), **_PIP_ENVIRONMENT, "TMPDIR": scratch},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            output = _output(process, time.monotonic() + _PIP_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        if "No space left on device" in output:
            raise OSError(errno.ENOSPC, "No space left on device")
        if _NO_MEMORY.search(output):
            raise WheelError(f"pip needed more than {memory_mib} MiB of memory on this controller, {_WITHOUT_END}")
        if _LARGE_FILE in output:
            raise WheelError(f"pip received a file of more than {_MOST_FILE_MIB} MiB, {_WITHOUT_END}")
        raise PipFailedError(output)


def _memory_mib() -> int:
    """Return how much memory pip may take."""
    try:
        left = int(machine.available_memory_bytes() * _PART_OF_MEMORY) // _MIB
    except (OSError, ValueError, KeyError):  # this system does not tell
        return _MOST_MEMORY_MIB
    return min(_MOST_MEMORY_MIB, max(_LEAST_MEMORY_MIB, left))


def _output(process: subprocess.Popen[bytes], until: float) -> str:
    """Return what pip writes until it ends.

    Raises:
        WheelError: it does not end by that time (of time.monotonic()), or it writes without end.
    """
    stream = process.stdout
    if stream is None:
        raise WheelError("pip was started without a pipe for its output.")
    found = bytearray()
    while select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(stream.fileno(), _BLOCK)
        found += block
        if not block:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
                return found.decode("utf-8", "replace")
            break
        if len(found) > _MOST_OUTPUT_MIB * _MIB:
            raise WheelError(f"pip wrote more than {_MOST_OUTPUT_MIB} MiB on this controller, {_WITHOUT_END}")
    raise WheelError(f"pip did not end within {_PIP_TIMEOUT_S} s on this controller, {_WITHOUT_END}")


def options_for(target: Target) -> list[str]:
    """Return the options of pip that select wheels for a target."""
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
    return options + [f"--platform={tag}" for tag in target.tags()]
