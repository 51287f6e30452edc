"""Render an expression with the variables of a role, as Ansible does, with the filters of this checkout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible import template
from ansible._internal._templating import _jinja_plugins
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from clusterctl.support import content


def variables_of(role: str, files: Iterable[str] = ("defaults/main.yml", "vars/main.yml")) -> dict[str, Any]:
    """Return the variables in files of a role."""
    found: dict[str, Any] = {}
    for name in files:
        path = Path(content.root(), "roles", role, name)
        found |= yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def rendered(expression: str, variables: Mapping[str, Any], filters: Iterable[ModuleType]) -> Any:
    """Return what an expression is with these variables.

    Args:
        expression: of Jinja, without braces.
        variables: their texts are templates.
        filters: the modules with the collection's filters.
    """
    ours = {
        f"clusterctl.hpc.{name}": function
        for module in filters
        for name, function in module.FilterModule().filters().items()
    }
    with pytest.MonkeyPatch.context() as patch:  # without Ansible's finder of collections
        load = _jinja_plugins.JinjaPluginIntercept.__getitem__
        patch.setattr(
            _jinja_plugins.JinjaPluginIntercept,
            "__getitem__",
            lambda self, name: ours[name] if name in ours else load(self, name),
        )
        return Templar(DataLoader(), variables=_trusted(dict(variables))).template(_trusted(f"{{{{ {expression} }}}}"))


def _trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _trusted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_trusted(one) for one in value]
    return template.trust_as_template(value) if isinstance(value, str) else value
