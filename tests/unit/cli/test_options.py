"""Groups of options."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

from clusterctl.cli import options
from clusterctl.cli.slurm_options import SlurmGroup

ROOT = Path(__file__).parents[3]
MOST_PARAMETERS = 20


def test_options_that_are_given_are_named_as_the_user_names_them() -> None:
    which = options.InventoriesGroup(named=[Path("i.ini")])
    assert list(options.given(which, SlurmGroup(partition="gpu", nodes=2, skip_busy=True))) == [
        "INVENTORY",
        "--partition",
        "--nodes",
        "--skip-busy",
    ]
    assert options.given(options.LoginGroup(), options.JobPathGroup()) == {}


def test_no_function_takes_more_parameters_than_one_can_read() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "python/*.py", "plugins/*.py", "roles/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for path in listed.stdout.split():
        if not (ROOT / path).exists():
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                if count > MOST_PARAMETERS:
                    found[f"{path}: {node.name}"] = count
    assert found == {}
