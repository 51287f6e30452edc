"""The registry of doctor's rules: finds every rule module in this package, and asks each for its findings and notes.

A rule module has ``findings(view)`` and ``ORDER``: among findings of one severity, those of the lower number come
first. ``notes(view)`` is optional: sentences about what is odd and harmless.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from clusterctl.diagnosis import rules, skew
from clusterctl.diagnosis.rules.evidence import unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding


@dataclass(frozen=True)
class DoctorRule:
    """The parts of one rule module."""

    order: int
    findings: Callable[[View], Iterable[Finding]]
    notes: Callable[[View], Iterable[str]]


@cache
def doctor_rules() -> tuple[DoctorRule, ...]:
    """Return every rule, in the order of their findings.

    Raises:
        AttributeError: a module has ``findings`` and lacks ``ORDER``.
    """
    found: list[DoctorRule] = []
    for entry in pkgutil.iter_modules(rules.__path__):
        module = import_module(f"{rules.__name__}.{entry.name}")
        if hasattr(module, "findings"):
            found.append(DoctorRule(module.ORDER, module.findings, getattr(module, "notes", lambda _view: ())))
    return tuple(sorted(found, key=lambda rule: rule.order))


def diagnose(view: View) -> tuple[Finding, ...]:
    """Return everything that is wrong, worst first: errors, then warnings, each as a job would meet them."""
    return skew.ordered(finding for rule in doctor_rules() for finding in rule.findings(view))


def notes(view: View) -> tuple[str, ...]:
    """Return what is odd and harmless, and what doctor could not look at: a reader must not take that for good."""
    return (*(note for rule in doctor_rules() for note in rule.notes(view)), *unseen(view))
