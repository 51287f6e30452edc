"""The registration of a check: what suites know of it, and how it is made of its options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from clusterctl.suite import Declaration

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.suite import CheckOptions
    from clusterctl.validation.checks.base import Check


@dataclass(frozen=True, kw_only=True)
class Registration(Declaration):
    """One entry of a check module's ``CHECKS``; ``make`` takes the options and returns the check."""

    make: Callable[[Any], Check]

    def check(self, options: CheckOptions) -> Check:
        """Return the check with these options; a deadline among them replaces the check's own.

        Raises:
            TypeError: the options are of another check.
        """
        if not isinstance(options, self.options):
            raise TypeError(f"{self.name} takes {self.options.__name__}, not {type(options).__name__}")
        made = self.make(options)
        if options.deadline_s is None:
            return made
        return cast("Check", replace(cast("Any", made), deadline_s=options.deadline_s))  # checks are frozen dataclasses
