"""The folders of helper modules are all on pytest's path, so a name means one module."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_no_two_helper_modules_of_the_tests_have_one_name(pytestconfig: pytest.Config) -> None:
    folders = [ROOT / folder for folder in pytestconfig.getini("pythonpath")]
    named: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in folders for path in sorted(folder.glob("*.py"))):
        if not path.name.startswith(("test_", "conftest", "__")):
            named[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
