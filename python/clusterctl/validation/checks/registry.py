"""The registry of checks: finds the ``CHECKS`` of every module in this package, and makes the checks of a suite."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from clusterctl.suite import DEFAULT, GATE, Catalogue, nearest
from clusterctl.support.errors import ConfigError
from clusterctl.validation import checks
from clusterctl.validation.checks.external import External

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.suite import Suite
    from clusterctl.validation.checks.base import Check, Registration

REACHABLE, PROVISIONED, SKEW = GATE


@cache
def registrations() -> Mapping[str, Registration]:
    """Return the registration of each check by name, in the order in which the checks run."""
    found: list[Registration] = []
    for module in pkgutil.iter_modules(checks.__path__):
        found += getattr(import_module(f"{checks.__name__}.{module.name}"), "CHECKS", ())
    return {one.name: one for one in sorted(found, key=lambda one: one.order)}


@cache
def catalogue() -> Catalogue:
    """Return what suites know of the checks."""
    return Catalogue(registrations().values())


def build(suite: Suite) -> tuple[Check, ...]:
    """Return the checks of a suite in the order in which they run, the user's own last."""
    known = registrations()
    made = (known[name].check(options) for name, options in suite.checks.items() if name in known)
    return (*made, *(External.of(check) for check in suite.external))


def select(names: Sequence[str] | None, suite: Suite | None = None) -> tuple[Check, ...]:
    """Return checks by name in the order in which they run.

    ``names`` None is every check of the suite, and ``suite`` None is nightly. A check outside the suite has the options
    of nightly.

    Raises:
        ConfigError: a name is unknown, and the message gives the nearest one; or the list of names is empty.
    """
    suite = suite or catalogue().builtin("nightly")
    if names is None:
        return build(suite)
    known = [*GATE, *registrations(), *(check.name for check in suite.external)]
    if not names:
        raise ConfigError(
            f"--checks is empty, and a run without a check proves nothing; give some of: {', '.join(known)}."
        )
    for name in names:
        if name not in known:
            hint = nearest(name, known, "the checks are:")
            raise ConfigError(f"Unknown check '{name}'; {hint}")
    chosen = {name: suite.checks.get(name) or catalogue().options(name) for name in registrations() if name in names}
    external = tuple(check for check in suite.external if check.name in names)
    return build(suite.model_copy(update={"checks": chosen, "external": external}))


# The suites of this installation: the built-in ones and the user's file, over every registered check.


def default() -> Suite:
    """Return the suite of a run for which the user gives none."""
    return builtin(DEFAULT)


def builtin(name: str) -> Suite:
    """Return a built-in suite (see :meth:`clusterctl.suite.Catalogue.builtin`)."""
    return catalogue().builtin(name)


def parse(text: str, place: str) -> Suite:
    """Read a suite from the text of a file (see :meth:`clusterctl.suite.Catalogue.parse`)."""
    return catalogue().parse(text, place)


def load(path: Path | None, name: str | None = None) -> Suite:
    """Return the suite of a run (see :meth:`clusterctl.suite.Catalogue.load`)."""
    return catalogue().load(path, name)
