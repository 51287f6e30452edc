"""Runs on a node for configure_cache.py: choose which answers of a configure are kept, and compare configured trees.

python3 configure_trees.py keep FROM WORK
python3 configure_trees.py compare TREE TREE...
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_MARK = "CONFIGURE-TREES "
# ac_cv_env_ holds CPPFLAGS with paths of the work folder, and autoconf refuses another value. oac_cv_ are answers to
# Open MPI's --with options.
_LEFT_OUT = re.compile(r"^(?:test \$\{)?(?:ac_cv_env_|oac_cv_)")
_NAMED = re.compile(r"^(?:test \$\{)?[a-z]\w*_cv_\w+")
# Answers of autoconf's, automake's and libtool's own tests. A macro of a project may set more than its answer.
_STANDARD = re.compile(
    r"^(?:test \$\{)?(?:lt_cv_|am_cv_|ac_cv_(?:func|header|type|sizeof|alignof|member|have_decl|c)_)"
)
_NOT_COMPARED = {"config.log", "config.cache"}  # they tell how the answers were found
_MOST_NAMED = 40


def keep(source: Path, work: str) -> None:
    """Copy the answers to ``most`` and ``standard``, each without those that name the work folder."""
    counts = {"answers": 0, "most": 0, "standard": 0}
    for cache in sorted(source.glob("*.cache")):
        lines = [line for line in cache.read_text(encoding="utf-8").splitlines() if _NAMED.match(line)]
        counts["answers"] += len(lines)
        most = [line for line in lines if not _LEFT_OUT.match(line) and work not in line]
        for name, kept in (("most", most), ("standard", [line for line in most if _STANDARD.match(line)])):
            Path(name).mkdir(exist_ok=True)
            Path(name, cache.name).write_text("\n".join(kept) + "\n", encoding="utf-8")
            counts[name] += len(kept)
    print(_MARK + json.dumps({"kept": counts}))


def contents(tree: Path) -> dict[str, bytes]:
    """Return every file of a tree by its path; a link counts by its target."""
    return {
        str(path.relative_to(tree)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in tree.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.name not in _NOT_COMPARED
    }


def changed_lines(before: bytes, after: bytes) -> list[str]:
    """Return the first lines that only one of two files has."""
    old, new = before.decode(errors="replace").splitlines(), after.decode(errors="replace").splitlines()
    gone, come = set(old) - set(new), set(new) - set(old)
    rows = [f"-{line}" for line in old if line in gone] + [f"+{line}" for line in new if line in come]
    return [row[:200] for row in rows[:6]]


def compare(first: Path, others: list[Path]) -> None:
    """Print how each tree differs from the first, byte by byte."""
    wanted = contents(first)
    for other in others:
        found = contents(other)
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        lines = {name: changed_lines(wanted.get(name, b""), found.get(name, b"")) for name in differing[:_MOST_NAMED]}
        row = {"tree": other.name, "with": first.name, "files": len(wanted), "differing": differing, "lines": lines}
        print(_MARK + json.dumps({"compared": row}))


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "keep":
        keep(Path(rest[0]), rest[1])
    else:
        first, *others = (Path(name) for name in rest)
        compare(first, others)


if __name__ == "__main__":
    main()
