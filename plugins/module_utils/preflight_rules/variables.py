# SPDX-License-Identifier: Apache-2.0
"""Check variables of the inventory against the argument specs of the roles."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

from .model import Problem
from .words import cut, shortened, shown_value

# Facts that preflight itself sets: they have its prefix, but they are not variables of the user.
_OUTPUTS = frozenset({"preflight_node", "preflight_members"})

# Roles whose names are words of everyday use: roles of others have variables with these prefixes as well, some of them
# one letter away from ours. A near miss of such a name is a warning. Names such as openmpi_ belong to clusterctl.
_GENERIC_ROLES = frozenset({"environment", "fabric", "hosts", "preflight", "validation"})

# How alike two names are, without the role's, when one is taken for a typing error of the other (difflib's ratio).
_TYPING_ERROR = 0.75


class VariableRules:
    """Checks variables against the argument specs of all roles; each distinct value is checked once."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]], ignored: Iterable[str] = ()) -> None:
        """Take the argument specs of the roles, and the variables to skip.

        Args:
            specs: role name to its options (variable name to its spec).
            ignored: variables that are not checked.
        """
        self._specs = specs
        self._ignored = frozenset(ignored) | _OUTPUTS
        # The longest role name wins: python_env_x belongs to python_env, even beside a role 'python'.
        self._roles = sorted(specs, key=len, reverse=True)
        self._known: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._strangers: set[str] = set()
        self._near_misses: dict[str, str] = {}

    def warnings(self) -> list[str]:
        """Return sentences about the variables so far that begin like a role's name and are unknown to it."""
        listed = "list a variable of other software in preflight_ignored_variables."
        found = [
            f"{name} is not a variable of role {self.role_of(name)}, and stays unused there; did you mean {near}? "
            f"Correct the name, or {listed}"
            for name, near in sorted(self._near_misses.items())
        ]
        if self._strangers:
            what = "is a variable" if len(self._strangers) == 1 else "are variables"
            names = shortened(sorted(self._strangers))
            unused = f"{names} {what} that the roles of clusterctl do not have, and stay unused there."
            found.append(f"{unused} Correct the name, or {listed}")
        return found

    @property
    def judged(self) -> int:
        """The number of distinct values that were checked."""
        return len(self._known)

    def role_of(self, name: str) -> str | None:
        """Return the role that a variable belongs to by its prefix, None for any other variable."""
        if name in self._ignored:
            return None
        return next((role for role in self._roles if name.startswith(f"{role}_")), None)

    def problems(self, host: str, name: str, value: object) -> list[Problem]:
        """Return the problems of one variable of one host."""
        role = self.role_of(name)
        if role is None:
            return []
        key = (name, json.dumps(value, sort_keys=True, default=str))
        if key not in self._known:
            self._known[key] = list(self._judge(role, name, value))
        return [Problem(host, "variable", problem, cure, name) for problem, cure in self._known[key]]

    def _judge(self, role: str, name: str, value: object) -> Iterable[tuple[str, str]]:
        spec = self._specs[role].get(name)
        if spec is None:
            return self._judge_unknown(role, name)
        fix = f"correct {name} where it is set (inventory, group_vars, host_vars or -e)"
        if role in _GENERIC_ROLES:
            fix += "; if it belongs to other software, give clusterctl its own value with -e, which wins"
        return _judge_value(spec, name, value, fix)

    def _judge_unknown(self, role: str, name: str) -> list[tuple[str, str]]:
        near = _nearest(name, role, self._specs[role])
        if not near:
            self._strangers.add(name)
        elif role in _GENERIC_ROLES:
            self._near_misses[name] = near
        else:
            cure = f"did you mean {near}? (list a variable of your own in preflight_ignored_variables)"
            return [(f"{name} is not a variable of role {role}", cure)]
        return []


def _judge_value(spec: Mapping[str, Any], name: str, value: object, fix: str) -> Iterable[tuple[str, str]]:
    if value is None:
        if spec.get("default") is not None:
            yield f"{name} is set but has no value", "give it a value, or remove it to get the default"
        return
    shown = "a secret value" if spec.get("no_log") else shown_value(value)
    wanted = str(spec.get("type", "str"))
    if wanted == "str" and isinstance(value, float):
        yield f"{name} is the number {shown}, and a number loses its last zeros", f'write "{name}" in quotes'
        return
    alone = {key: one for key, one in spec.items() if key not in {"required", "default"}}
    result = ArgumentSpecValidator({name: alone}).validate({name: value})
    for error in result.errors.errors:
        kind = type(error).__name__
        if kind == "ArgumentTypeError":
            yield f"{name} is {shown}, which is not of type {wanted}", fix
        elif kind == "ArgumentValueError":
            yield f"{name} is {shown}; it may be {', '.join(map(str, spec.get('choices', [])))}", fix
        else:
            yield f"{name}: " + ("its value is not valid" if spec.get("no_log") else cut(error.msg, 300)), fix


def _nearest(name: str, role: str, options: Iterable[str]) -> str:
    """Return the variable of a role that a name is probably a typing error of; '' for a variable of other software."""
    bare = {option.removeprefix(f"{role}_"): option for option in options}
    near = difflib.get_close_matches(name.removeprefix(f"{role}_"), list(bare), n=1, cutoff=_TYPING_ERROR)
    return bare[near[0]] if near else ""
