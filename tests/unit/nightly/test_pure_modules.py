from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from clusterctl.nightly import cron as crontab
from clusterctl.nightly import policy, schedule, systemd


@pytest.mark.parametrize("module", [schedule, systemd, crontab, policy], ids=lambda module: module.__name__)
def test_what_decides_touches_nothing(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names & {"os", "subprocess", "pathlib", "shutil", "fcntl", "socket", "clusterctl.nightly.storage"} == set()
