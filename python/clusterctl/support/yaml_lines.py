"""YAML that remembers on which line each of its values stands, so that a message can name the place.

Keys are as YAML 1.2 has them: ``on``, ``off``, ``yes`` and ``no`` are words, only ``true`` and ``false`` are truth
values. A key that stands twice is refused, where YAML libraries silently take the last one.
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
    """YAML 1.2's truth values."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


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
        ConfigError: it is no YAML, or has a key twice.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # a character that no text has
        raise ConfigError(f"{name} is no YAML: {' '.join(str(error).split())[:_MOST_WORDS]}.") from None
    reader = _Reader(loader, name)
    try:
        node = loader.get_single_node()
        data = None if node is None else reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: this is no YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no YAML: {' '.join(str(error).split())[:_MOST_WORDS]}.") from None
    finally:
        loader.dispose()
    return Document(name, data, reader.lines)


class _Reader:
    """Turns nodes into values, and keeps their lines."""

    def __init__(self, loader: _Loader, name: str) -> None:
        self._loader = loader
        self._name = name
        self.lines: dict[Place, int] = {}

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > _MOST_VALUES:
            raise ConfigError(f"{self._name} has more than {_MOST_VALUES:,} values; leave some out.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._name}, line {line}: a key has to be a word.")
            key = str(key_node.value)
            if key in found:
                raise ConfigError(f"{self._name}, line {line}: '{key}' stands there twice; remove one of them.")
            inside = (*place, key)
            self.lines[inside] = line
            found[key] = self.value(value_node, inside)
        return found
