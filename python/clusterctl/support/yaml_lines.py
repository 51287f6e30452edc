"""YAML with the line of each value, so that a message can name the place.

Keys and values follow YAML 1.2: ``on``, ``off``, ``yes`` and ``no`` are words, only ``true`` and ``false`` are truth
values. A duplicate key is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Place: TypeAlias = "tuple[str | int, ...]"

_MOST_WORDS = 200
_MOST_VALUES = 100_000  # aliases of aliases can make a short file fill the memory


class _Loader(yaml.SafeLoader):
    """Knows the plain values of YAML 1.2's core schema alone."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML reads it from the class


for _kind, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), _first)


@dataclass(frozen=True)
class Document:
    """The values of a file, and the line of each; the place of a value is the keys and indices that lead to it."""

    name: str
    data: Any
    lines: Mapping[Place, int]

    def where(self, place: Place) -> str:
        """Return 'validation.yml, line 12', for the nearest place that stands in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}, line {self.lines[place]}" if place in self.lines else self.name


def read(text: str, name: str) -> Document:
    """Read a YAML document.

    Args:
        text: what the file holds.
        name: how a message is to call it.

    Raises:
        ConfigError: it is invalid YAML, or has a key twice.
    """
    lines: dict[Place, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else _Values(name, loader, lines).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: invalid YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is invalid YAML: {' '.join(str(error).split())[:_MOST_WORDS]}.") from None
    return Document(name, data, lines)


@dataclass
class _Values:
    """Turns the nodes of a document into values, and collects the line of each."""

    name: str
    loader: _Loader
    lines: dict[Place, int]

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > _MOST_VALUES:
            raise ConfigError(f"{self.name} has more than {_MOST_VALUES:,} values; leave some out.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:int":
            return int(node.value, 0 if node.value[:2] in {"0o", "0x"} else 10)
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.name}, line {line}: a key has to be a word.")
            key = str(key_node.value)
            if key in found:
                raise ConfigError(f"{self.name}, line {line}: '{key}' stands there twice; remove one of them.")
            inside = (*place, key)
            self.lines[inside] = line
            found[key] = self.value(value_node, inside)
        return found
