"""YAML with the line of each value, so that a message can name the place.

Keys and values follow YAML 1.2: ``on``, ``off``, ``yes`` and ``no`` are words, only ``true`` and ``false`` are truth
values. A duplicate key is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ruamel.yaml.nodes import Node

Place: TypeAlias = "tuple[str | int, ...]"

_MOST_WORDS = 200
_MOST_VALUES = 100_000  # aliases of aliases can make a short file fill the memory


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
    yaml = YAML(typ="safe", pure=True)
    reader = _Reader(name, yaml)
    try:
        node = yaml.compose(text)
        data = None if node is None else reader.value(node, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: invalid YAML: {error.problem or error.context}.") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is invalid YAML: {' '.join(str(error).split())[:_MOST_WORDS]}.") from None
    return Document(name, data, reader.lines)


@dataclass
class _Reader:
    """Turns the nodes of ruamel.yaml into values, and collects the line of each.

    Its round-trip loader knows lines too, but forgets how a key was written and follows an alias into itself.
    """

    name: str
    yaml: YAML
    lines: dict[Place, int] = field(default_factory=dict)

    def value(self, node: Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > _MOST_VALUES:
            raise ConfigError(f"{self.name} has more than {_MOST_VALUES:,} values; leave some out.")
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        return self.yaml.constructor.construct_object(node)

    def _mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise ConfigError(f"{self.name}, line {line}: a key has to be a word.")
            key = str(key_node.value)
            if key in found:
                raise ConfigError(f"{self.name}, line {line}: '{key}' stands there twice; remove one of them.")
            inside = (*place, key)
            self.lines[inside] = line
            found[key] = self.value(value_node, inside)
        return found
