"""Run molecule's scenarios for real: the one of all roles on three nodes, and each role's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusterctl.support import content

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted(path.parent for path in ROOT.glob("roles/*/molecule/*/molecule.yml"))


def test_all_roles_make_one_cluster(tmp_path: Path) -> None:
    played(ROOT / "tests/all_roles/molecule/default", tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: f"{path.parents[1].name}-{path.name}")
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    played(scenario, tmp_path)


def played(scenario: Path, tmp_path: Path) -> None:
    content.collections_path()  # a new checkout gets the link that .config/molecule/config.yml names
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_NOCOLOR": "1",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path),  # molecule remembers nothing of an interrupted run
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("molecule")), "test", "--scenario-name", scenario.name],
        cwd=scenario.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def test_every_role_has_a_scenario() -> None:
    with_scenario = {path.parents[1].name for path in SCENARIOS}
    # the six roles of the software play what they share
    assert with_scenario == {path.name for path in (ROOT / "roles").iterdir() if path.is_dir()} - {"software"}
