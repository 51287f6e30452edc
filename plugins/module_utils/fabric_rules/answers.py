# SPDX-License-Identifier: Apache-2.0
"""Read what nodes answer about their listeners and connections: what is of another form is no answer."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Tuple

from ..plain_text import one_line
from .model import KIND_WORDS, PairKind

_MOST_RESULTS = 1 << 16
_LARGEST_PORT = 65535
_LONGEST_WORDS = 500


def ports(answer: Any) -> Dict[str, int]:
    """Return the port of a listener by network."""
    found = _mapping(answer, "ports")
    return {str(key): port for key, port in found.items() if type(port) is int and 0 < port <= _LARGEST_PORT}


def problems(answer: Any) -> Dict[str, str]:
    """Return by network why a node does not listen, in words of one line."""
    return {str(key): one_line(str(words), _LONGEST_WORDS) for key, words in _mapping(answer, "problems").items()}


def results(answer: Any) -> Iterator[Tuple[str, str, PairKind, str]]:
    """Return network, target, kind and problem of each connection that a node tells of."""
    found = answer.get("results") if isinstance(answer, Mapping) else None
    for entry in found[:_MOST_RESULTS] if isinstance(found, list) else ():
        if not isinstance(entry, (list, tuple)) or not all(isinstance(word, str) for word in entry):
            continue
        if len(entry) == 4 and (entry[2] == "ok" or entry[2] in KIND_WORDS):  # noqa: PLR2004 - as said above
            network, target, kind, problem = entry
            yield network, target, kind, one_line(problem, _LONGEST_WORDS)


def _mapping(answer: Any, key: str) -> Mapping[Any, Any]:
    found = answer.get(key) if isinstance(answer, Mapping) else None
    return found if isinstance(found, Mapping) else {}
