"""What a change touched: the one place that decides which long groups of tests and which linters run.

The change is what differs between the working tree and a base: the commit that CLUSTERCTL_TEST_BASE names, else the
last commit of the branch that is 24 hours older than its tip. Everything counts as changed where CLUSTERCTL_TEST_BASE
is 'all', and where there is no such history: an archive, a shallow clone, the first day.

As a program it prints those changed files that match one of its patterns, and 'all' for everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "CLUSTERCTL_TEST_BASE"
EVERYTHING = "all"
DAY_S = 24 * 3600


class UnknownBaseError(Exception):
    """CLUSTERCTL_TEST_BASE names no commit of this repository."""


def git(root: Path, *words: str) -> str | None:
    """Return what git prints, or nothing where it fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def base(root: Path = ROOT) -> str:
    """Return the commit that the change begins at, or EVERYTHING."""
    named = os.environ.get(VARIABLE, "")
    if named == EVERYTHING or git(root, "rev-parse", "--git-dir") is None:
        return EVERYTHING
    if named:
        found = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{named}^{{commit}}")
        if not found:
            raise UnknownBaseError(f"{VARIABLE}={named} is not a commit here; name another one, or '{EVERYTHING}'")
        return found.strip()
    tip = git(root, "log", "-1", "--format=%ct") or ""
    # The first parents alone: a merge brings older commits of its branch, and the merge itself is the change.
    since = f"--before={int(tip) - DAY_S}" if tip.strip() else ""
    found = git(root, "rev-list", "-1", "--first-parent", since, "HEAD") if since else ""
    return (found or "").strip() or EVERYTHING


def paths(root: Path = ROOT) -> frozenset[str] | None:
    """Return the changed files by their paths below the root, those that git does not know yet included.

    Returns:
        The paths, or None where everything counts as changed.

    Raises:
        UnknownBaseError: The base that the environment names is not a commit.
    """
    start = base(root)
    if start == EVERYTHING:
        return None
    changed = git(root, "diff", "--name-only", "--no-renames", "-z", start)
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if changed is None or new is None:
        return None
    return frozenset(path for path in (changed + new).split("\0") if path)


def matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern matches: '*' matches slashes too, and a folder matches all below it."""
    return any(fnmatchcase(text, pattern) or text.startswith(f"{pattern}/") for pattern in patterns)


def matching(changed: frozenset[str], patterns: tuple[str, ...]) -> list[str]:
    return sorted(path for path in changed if matches(path, patterns))


def main() -> int:
    try:
        changed = paths()
    except UnknownBaseError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    print("\n".join([EVERYTHING] if changed is None else matching(changed, tuple(sys.argv[1:]))))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
