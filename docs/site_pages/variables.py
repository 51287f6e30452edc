"""Reference of the roles' variables, made from argument_specs.yml and defaults/main.yml."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from site_pages import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_INTRODUCTION = """\
# Variables

This page is made from `meta/argument_specs.yml` and `defaults/main.yml` of each role. Set a variable in
`group_vars/all.yml` for all nodes, in `host_vars/HOST.yml` for one, or with `-e NAME=VALUE` for one run.
Other users of the controller see such a value in `ps` while the command runs. Give a secret in a file: `-e @PATH`.
`clusterctl init` writes a `group_vars/all.yml` that holds every variable as a comment.
"""
# Words of the inventory that belong to no role: name, type, default, meaning as Markdown.
OF_THE_INVENTORY = (
    ("slots", "int", "usable GPUs or MIG instances, else cores", "Number of ranks on the host."),
    (
        "cluster_address",
        "str",
        "`ansible_host`",
        "Address by which other nodes reach it, as in a second, faster network.",
    ),
    ("cluster_port", "int", "`ansible_port`", "Port of the host's sshd for the other nodes."),
    ("cluster_aliases", "list of str", "`[]`", "Further names of the host in every `/etc/hosts`."),
    ("cluster_user", "str", "the login user", "[User that jobs run as](../how-to/cluster-user.md), without sudo."),
    ("cluster_user_keys", "list of str", "`[]`", "Further public keys that may log in as `cluster_user`."),
    ("cluster_prefix", "str", "`/usr/local`", "[Folder of the software](../how-to/prefix.md) on the nodes."),
    ("cluster_cache", "str", "none", "[Shared cache](../how-to/shared-cache.md) where `provision` looks first."),
    (
        "cluster_cache_signers",
        "str",
        "`~/.config/clusterctl/allowed_signers`",
        "File of the keys that the shared cache is trusted from.",
    ),
)
_OWN = "A host's line or a group can set these. `cluster_user` and `cluster_prefix` are the same on all nodes."
_MARKUP = re.compile(r"\b[VOCEP]\(((?:[^()\\]|\\.)*)\)")
_LONG = 60


def page(roles: Path) -> str:
    """Return the whole page as Markdown; ``roles`` is the folder with all roles."""
    head = ("variable", "type", "default", "meaning")
    rows = ((markdown.code(name, name), *others) for name, *others in OF_THE_INVENTORY)
    lines = [_INTRODUCTION, "## The inventory", "", _OWN, "", *markdown.table(head, rows)]
    for role in order(roles):
        lines += _role(roles, role)
    return "\n".join(lines)


def order(roles: Path) -> list[str]:
    """Return the roles in the order of the example's group_vars, which is that of the run; others follow."""
    present = sorted(path.parents[1].name for path in roles.glob("*/meta/argument_specs.yml"))
    named = re.findall(r"^## --- (\w+)", _example(roles), flags=re.MULTILINE)
    return [name for name in named if name in present] + [name for name in present if name not in named]


def names(roles: Path) -> list[str]:
    """Return every variable of every role, for a test that the page holds them all."""
    return [name for role in order(roles) for name in _specs(roles, role)["options"]]


def _specs(roles: Path, role: str) -> dict[str, Any]:
    text = (roles / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    specs: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]
    return {**specs, "options": specs.get("options") or {}}


def _role(roles: Path, role: str) -> list[str]:
    specs = _specs(roles, role)
    defaults_file = roles / role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(defaults_file.read_text(encoding="utf-8")) or {}) if defaults_file.is_file() else {}
    lines = [
        f"## {role}",
        "",
        f"{_plain(specs['short_description'])}. [README of the role](../../roles/{role}/README.md)",
        "",
    ]
    settable = _of_the_example(roles)
    head = ("variable", "type", "default", "meaning")
    mine = {name: option for name, option in specs["options"].items() if name in settable}
    passed = {name: option for name, option in specs["options"].items() if name not in settable}
    if mine:
        lines += markdown.table(head, (_variable(name, option, defaults) for name, option in mine.items()))
    if passed:
        lines += ["The playbook sets these from what other roles found. Set them only in a playbook of your own.", ""]
        lines += markdown.table(head, (_variable(name, option, defaults) for name, option in passed.items()))
    return lines


def _of_the_example(roles: Path) -> set[str]:
    """Return the variables that the example's group_vars show, which are those that a user sets."""
    return set(re.findall(r"^# ([a-z][a-z0-9_]*):", _example(roles), flags=re.MULTILINE))


def _example(roles: Path) -> str:
    return (roles.parent / "inventories" / "example" / "group_vars" / "all.yml").read_text(encoding="utf-8")


def _variable(name: str, option: dict[str, Any], defaults: dict[str, Any]) -> tuple[str, str, str, str]:
    meaning = _plain(option.get("description", ""))
    if choices := option.get("choices"):
        meaning += " One of " + ", ".join(markdown.code(_value(choice)) for choice in choices) + "."
    return markdown.code(name, name), _type(option), _default(name, option, defaults), meaning


def _type(option: dict[str, Any]) -> str:
    kind = str(option.get("type", "str"))
    return f"{kind} of {option['elements']}" if "elements" in option else kind


def _default(name: str, option: dict[str, Any], defaults: dict[str, Any]) -> str:
    if name not in defaults and "default" not in option:
        return "required" if option.get("required") else ""
    value = _value(defaults.get(name, option.get("default")))
    computed = "{{" in value
    if len(value) <= _LONG and not computed:
        return markdown.code(value)
    summary = "computed" if computed else "show"
    return f"<details><summary>{summary}</summary><code>" + _breakable(value) + "</code></details>"


def _breakable(value: str) -> str:
    text = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")


def _value(value: object) -> str:
    if isinstance(value, str):
        return " ".join(value.split()) if value else '""'
    return json.dumps(value, ensure_ascii=False)


def _plain(description: str | Iterable[str]) -> str:
    """Return a description with Ansible's V(…) and O(…) as code."""
    text = description if isinstance(description, str) else " ".join(description)
    parts = []
    end = 0
    for found in _MARKUP.finditer(text):
        parts += [markdown.escaped(text[end : found.start()]), markdown.code(found[1].replace("\\", ""))]
        end = found.end()
    return "".join((*parts, markdown.escaped(text[end:]))).strip()
