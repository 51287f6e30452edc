"""A file that imports GPL parts of ansible-core says so in its first line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# ansible.module_utils has the BSD license; modules run with it alone.
GPL = re.compile(r"^\s*(?:from|import) ansible(?!_)(?!\.module_utils)\b", re.MULTILINE)


def importing() -> list[str]:
    argv = ["git", "ls-files", "python/*.py", "plugins/*.py", "roles/*.py"]
    files = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in files if GPL.search((ROOT / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", importing())
def test_the_first_line_names_the_license(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: GPL-3.0-or-later\n")
