"""The suites of this installation: the built-in ones and the user's file, over every registered check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.suite import DEFAULT
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.suite import Suite


def default() -> Suite:
    """Return the suite of a run for which the user gives none."""
    return builtin(DEFAULT)


def builtin(name: str) -> Suite:
    """Return a built-in suite (see :meth:`clusterctl.suite.Catalogue.builtin`)."""
    return registry.catalogue().builtin(name)


def parse(text: str, place: str) -> Suite:
    """Read a suite from the text of a file (see :meth:`clusterctl.suite.Catalogue.parse`)."""
    return registry.catalogue().parse(text, place)


def load(path: Path | None, name: str | None = None) -> Suite:
    """Return the suite of a run (see :meth:`clusterctl.suite.Catalogue.load`)."""
    return registry.catalogue().load(path, name)
