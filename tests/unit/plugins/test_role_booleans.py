"""A switch of a role may be text: '-e name=true' and 'name=true' in an INI inventory are text for Ansible."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = content.root() / "roles"


def switches() -> Iterator[str]:
    for specs in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"].values()
        for entry in entries:
            yield from (name for name, spec in (entry.get("options") or {}).items() if spec.get("type") == "bool")


def uses(name: str) -> list[str]:
    """Return the lines that test a switch; a module converts the value that it is given whole."""
    given_whole = re.compile(rf'^\s*[\w-]+: "{{{{ {name} }}}}"$')
    return [
        line.strip()
        for place in ("tasks", "vars", "templates")
        for path in sorted(ROLES.glob(f"*/{place}/*"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(rf"\b{name}\b", line) and not given_whole.match(line)
    ]


@pytest.mark.parametrize("name", sorted(set(switches())))
def test_text_is_turned_into_a_truth_value_wherever_a_switch_is_tested(name: str) -> None:
    bare = [line for line in uses(name) if re.search(rf"\b{name}\b(?! \| bool)", line)]
    assert bare == []
