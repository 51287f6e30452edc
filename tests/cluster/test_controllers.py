"""Each Python with the oldest and the newest ansible-core that it takes: the wheel provisions and validates two nodes.

``make test-controllers`` runs these tests. ``make test`` has one controller: test_provision.py installs the wheel too.
Each pair runs the unit tests that load Ansible or the collection's plugins. The first and the last pair run all unit
tests about what depends on the Python or on ansible-core. Those marked ``programs`` are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import installed
import pytest
from clusterctl.sandbox import Sandbox, container_engine, images
from clusterctl.state import paths

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NEWEST = "newest"
# ansible-core 2.19 runs on Python 3.11 to 3.13; 2.20 and 2.21 on 3.12 to 3.14.
PAIRS = (
    ("3.11", "2.19.1"),  # the oldest
    ("3.12", "2.19"),
    ("3.12", NEWEST),
    ("3.13", "2.19"),
    ("3.13", NEWEST),
    ("3.14", "2.20"),
    ("3.14", NEWEST),
)
IMAGES = {"3.13": "debian13", "3.14": "testing"}  # nodes' images whose distribution has that Python
ENDS = (PAIRS[0], PAIRS[-1])
UNIT = ("cli", "plugins", "provisioning", "state", "support")
LOADS_ANSIBLE = re.compile(
    r"role_templates|plugins\.(action|filter|modules)\b|^(from|import) ansible[ .]", re.MULTILINE
)
FOR_UNIT = ("pytest>=8.2", "hypothesis>=6.100", "jsonschema>=4.23")


@dataclass(frozen=True)
class Place:
    """A folder for environments, and the wheel."""

    folder: Path
    wheel: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("controllers")
    return Place(folder, installed.build_wheel(folder))


@pytest.fixture(scope="module")
def bare(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Two bare nodes; the unit tests start none."""
    return sandbox("controllers", nodes=2)


@pytest.mark.parametrize(("python", "core"), PAIRS, ids=lambda word: word)
def test_the_wheel_makes_and_proves_a_cluster(place: Place, bare: Sandbox, python: str, core: str) -> None:
    controller = made(place, python, core)
    version = controller.says("python", "-c", "import ansible.release as r; print(r.__version__)").strip()
    assert core == NEWEST or f"{version}.".startswith(f"{core}.")
    where = controller.says("python", "-c", "from clusterctl.support import content; print(content.root())").strip()
    assert where.startswith(str(controller.folder)), "the content of the wheel, not of the checkout"
    inventory = str(bare.inventory)
    own_state = {"XDG_STATE_HOME": str(controller.folder / "state")}  # a controller that has never seen the nodes
    done = controller.run("clusterctl", "provision", "--yes", "--no-validate", inventory, env=own_state)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "Traceback" not in done.stderr
    assert "DEPRECATION" not in done.stderr
    done = controller.run("clusterctl", "validate", "--format", "json", inventory, env=own_state)
    assert done.returncode == 0, done.stderr[-5000:]
    record = json.loads(done.stdout)
    assert record["verdict"] == "PASS"
    assert len(record["checks"]) > 1


@pytest.mark.parametrize(("python", "core"), PAIRS, ids=lambda word: word)
def test_the_unit_tests_that_load_ansible_pass_on_the_wheel(
    place: Place, python: str, core: str, record_property: Callable[[str, object], None]
) -> None:
    files = (path for name in UNIT for path in sorted((installed.ROOT / "tests" / "unit" / name).rglob("test_*.py")))
    chosen = [str(path) for path in files if LOADS_ANSIBLE.search(path.read_text(encoding="utf-8"))]
    assert len(chosen) > 20
    record_property("unit_tests", passes(made(place, python, core), chosen))


@pytest.mark.parametrize(("python", "core"), ENDS, ids=lambda word: word)
def test_all_unit_tests_of_the_ends_pass_on_the_wheel(
    place: Place, python: str, core: str, record_property: Callable[[str, object], None]
) -> None:
    chosen = [str(installed.ROOT / "tests" / "unit" / name) for name in UNIT]
    record_property("unit_tests", passes(made(place, python, core), chosen))


def passes(controller: installed.Controller, chosen: list[str]) -> str:
    """Run unit tests in the environment of a controller, and return how many passed, in pytest's words."""
    options = ("-q", "-m", "not programs", "-p", "no:cacheprovider", "--rootdir", str(installed.ROOT))
    project = ("-c", str(installed.ROOT / "pyproject.toml"))
    done = controller.run("python", "-m", "pytest", *project, *options, *chosen)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    said = done.stdout.splitlines()[-1]
    assert " passed" in said, "all were skipped"
    return said


def made(place: Place, python: str, core: str) -> installed.Controller:
    """Return the environment of a pair, made where it is missing; a test is skipped without that Python."""
    folder = place.folder / f"python{python}-ansible-core-{core}"
    here = installed.python_of_this_machine(python)
    around = () if here else in_a_container(place, python)
    if (folder / "made").exists():
        return installed.Controller(folder, around)
    wanted = "ansible-core" if core == NEWEST else f"ansible-core=={core}.*"
    words = [here] if here else [*around, "/usr/bin/python3"]
    controller = installed.newly_made(folder, words, wanted, str(place.wheel), *FOR_UNIT, around=around)
    (folder / "made").touch()
    return controller


def in_a_container(place: Place, python: str) -> tuple[str, ...]:
    """Return the words that run a program in a container with that Python, in this machine's network."""
    if python not in IMAGES:
        pytest.skip(f"This machine has no Python {python}, and this test knows no image of a node for it.")
    engine = container_engine.find()
    reference = images.ensure(engine, IMAGES[python], lambda _: None)
    state, cache = paths.state_dir().value, paths.cache_dir().value
    seen = (place.folder, installed.ROOT, state, cache)
    volumes = [f"--volume={path}:{path}" for path in dict.fromkeys(map(str, seen))]
    variables = {"HOME": str(place.folder), "XDG_STATE_HOME": str(state.parent), "XDG_CACHE_HOME": str(cache.parent)}
    given = [f"--env={name}={value}" for name, value in variables.items()]
    run = ("run", "--rm", "--init", "--network=host", "--entrypoint=/usr/bin/env", f"--user={os.getuid()}")
    words = tuple(engine.argv(*run, *volumes, *given, reference))
    has_ssh = ("sh", "-c", "command -v ssh || exit 1")
    asked = subprocess.run([*words, *has_ssh], capture_output=True, text=True, check=False)
    if asked.returncode == 1:
        pytest.skip(f"This machine has no Python {python}, and the image of a node that has one lacks ssh.")
    assert asked.returncode == 0, asked.stderr
    return words
