# SPDX-License-Identifier: Apache-2.0
"""Choose versions for requirements without hashes, once, and keep the answer as a file that pip and uv can read.

uv chooses. It reads the metadata of wheels, and of source archives and repositories that state theirs. No program of
a package runs here: uv gets a Python that ends each of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .packages import Target
    from .store import WheelStore

from . import indexes
from .lock import MOST_BYTES, Lock, LockError
from .requirements import canonicalize_name

_LONGEST_S = 1800
# uv's names of platforms have these releases of glibc.
_GLIBC = (17, 28, *range(31, 41))
_MACHINES = {"x86_64", "aarch64"}
_ARGUMENTS = (
    "pip",
    "compile",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--quiet",
    "--color=never",
    "--no-cache",
)
_SURROUNDINGS = {
    "UV_KEYRING_PROVIDER": "disabled",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "LC_ALL": "C",
    "NO_COLOR": "1",
}
# uv asks an interpreter about itself, and starts the one that it names for all else.
_INTERPRETER = """#!{python} -I
import sys
if sys.argv[1:4] != ["-I", "-B", "-c"] or "get_interpreter_info" not in "".join(sys.argv[4:5]):
    sys.exit("no program of a package runs on this machine")
code = sys.argv[4]
sys.argv = ["-c", *sys.argv[5:]]
sys.executable = sys._base_executable = "/bin/false"
exec(code)
"""
_REFUSED = re.compile(r"401 Unauthorized|403 Forbidden|\bHTTP status client error \(40[13]")
_BUILT = re.compile(r"Failed to (?:build|download and build|fetch and build|resolve requirements for) `([^`]{1,200})`")


def resolved(
    lock: Lock, store: WheelStore, target: Target, uv: Path, left_out: Sequence[str]
) -> tuple[str, Path, bool]:
    """Return the requirements of a lock with exact versions and hashes.

    Args:
        lock: read from a file with requirements alone.
        store: keeps the answer.
        target: the nodes' Python, machine and C library.
        uv: the program.
        left_out: canonical names of packages that come from elsewhere, which are not asked for.

    Returns:
        The text, the file in the cache that keeps it, and whether it was chosen now.

    Raises:
        LockError: no versions satisfy them.
    """
    asked = [line for line in lock.requirements if requirement_name(line) not in left_out]
    question = [asked, target.python, target.machine, target.glibc, "uv"]
    digest = hashlib.sha256(canonical(question)).hexdigest()[:16]
    kept = store.locks / f"requirements-{digest}.txt"
    with store.alone(kept):
        if kept.is_file():
            return kept.read_text(encoding="utf-8"), kept, False
        text = _chosen(lock, asked, target, uv, store.own) if asked else "\n"
        store.keep_text(kept, text)
        return text, kept, True


def requirement_name(line: str) -> str:
    """Return the canonical name that a requirement begins with, '' without one."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return str(canonicalize_name(found[0])) if found else ""


def _chosen(lock: Lock, asked: Sequence[str], target: Target, uv: Path, own: Path | None) -> str:
    folder = Path(lock.file).absolute().parent
    with tempfile.TemporaryDirectory() as scratch:
        interpreter, wanted = Path(scratch) / "python", Path(scratch) / "requirements.txt"
        interpreter.write_text(_INTERPRETER.format(python=sys.executable), encoding="utf-8")
        interpreter.chmod(0o700)
        wanted.write_text("".join(f"{line}\n" for line in asked), encoding="utf-8")
        argv = [
            str(uv),
            *_ARGUMENTS,
            f"--python={interpreter}",
            f"--python-version={target.python}",
            *_platform(target),
        ]
        argv += ["--no-index", "--no-config", f"--find-links={own}"] if own else []
        told = {} if own else indexes.for_uv(folder)
        surroundings = {**os.environ, **told, **_SURROUNDINGS, "TMPDIR": scratch}
        # packages with a wheel come first: another release may have none, and be built in vain
        for more in (["--no-build"], []):
            try:
                done = subprocess.run(
                    [*argv, *more, str(wanted)],
                    cwd=folder,
                    env=surroundings,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_LONGEST_S,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired as error:
                raise LockError(
                    f"{lock.file}: uv did not end within {_LONGEST_S} s; repair the way to the index."
                ) from error
            if done.returncode == 0:
                break
    if done.returncode:
        raise LockError(_sentence(lock.file, done.stderr.decode("utf-8", "replace")))
    if len(done.stdout) > MOST_BYTES:
        raise LockError(f"{lock.file}: uv's answer has more than {MOST_BYTES >> 20} MiB.")
    return done.stdout.decode("utf-8", "replace")


def _platform(target: Target) -> list[str]:
    """Return the option that names the platform; none where uv has no name for it, and then it chooses for this one."""
    minor = int(target.glibc.split(".")[1])
    fitting = [one for one in _GLIBC if one <= minor]
    if target.machine not in _MACHINES or not fitting:
        return []
    return [f"--python-platform={target.machine}-manylinux_2_{max(fitting)}"]


def _sentence(file: str, said: str) -> str:
    """Return why uv found no versions, without logins."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("warning:")]
    text = re.sub(r"://[^/@\s]*@", "://", re.sub(r"[^ -~]", " ", " ".join(lines)))
    if built := _BUILT.search(text):
        return (
            f"{file}: {built[1]} has no wheel for the nodes and does not state what it requires, and no program of a"
            " package runs on this controller; make a file with hashes where it can be built ('uv pip compile"
            " --generate-hashes'), and name that."
        )
    if _REFUSED.search(text):
        host = re.search(r"://([A-Za-z0-9.:-]+)", text)
        return (
            f"{file}: the package index{f' on {host[1]}' if host else ''} refuses this controller; give it a login"
            " (UV_INDEX_NAME_USERNAME and _PASSWORD of uv, index-url of pip's configuration, or ~/.netrc)."
        )
    text = (
        re.sub(r"^error: ", "", text).replace("No solution found when resolving dependencies", "").partition("hint:")[0]
    )
    text = re.sub(r"\bcause: ", "", text).strip(" :.")[:400]
    return f"{file}: uv finds no versions: {text or 'it says no reason'}. Correct the file, or the index."
