# SPDX-License-Identifier: Apache-2.0
"""Requirements: parse them, read those of a wheel, and follow them as the node would."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from .packages import Wheel

from .packages import WheelError

try:  # ansible-core depends on it
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
except ImportError:  # the sanity tests import plugins without the dependencies of ansible-core
    InvalidRequirement = ValueError  # type: ignore[misc, assignment]

    def canonicalize_name(*_given: Any, **_more: Any) -> Any:  # type: ignore[misc]
        """Raise WheelError: only a damaged installation of ansible-core lacks the package."""
        raise WheelError("The Python of Ansible lacks the package packaging; install ansible-core again.")

    Requirement = canonicalize_name  # type: ignore[misc, assignment]


def parse_requirements(texts: Iterable[Any], variable: str) -> list[Requirement]:
    """Return typed requirements.

    Args:
        texts: requirements as in PEP 508, without addresses.
        variable: the user's variable that holds them, for messages.

    Raises:
        WheelError: a text is not a requirement; options, paths and addresses are refused.
    """
    parsed = []
    for text in texts:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement as error:
            raise WheelError(
                f"{variable}: {_shown(text)} is not a requirement; write the name of a package, with versions if"
                " needed, like numpy or numpy>=1.26,<3."
            ) from error
        if requirement.url:
            raise WheelError(
                f"{variable}: {_shown(text)} names an address; put the wheel into the wheel folder and name the"
                " package."
            )
        parsed.append(requirement)
    return parsed


def _shown(text: Any) -> str:
    """Return a text for messages, without a login in an address."""
    return repr(re.sub(r"://[^/@\s]*@", "://****@", str(text)[:200]))


@dataclass(frozen=True)
class Choice:
    """Alternative sets of requirements, the preferred one first; the first that the index has is taken.

    ``variable`` is the user's variable that asks for them.
    """

    alternatives: tuple[tuple[Requirement, ...], ...] = ()
    variable: str = ""

    @classmethod
    def of(cls, alternatives: Iterable[Iterable[Any]], variable: str) -> Choice:
        """Return the typed form of lists of texts.

        Raises:
            WheelError: see :func:`parse_requirements`.
        """
        return cls(tuple(tuple(parse_requirements(texts, variable)) for texts in alternatives), variable)

    def taken(self, wheels: Iterable[Wheel]) -> int:
        """Return the index of the alternative that the wheels fulfil, -1 if they fulfil none."""
        have = {wheel.name: wheel.version for wheel in wheels}

        def holds(requirement: Requirement) -> bool:
            version = have.get(str(canonicalize_name(requirement.name)))
            return version is not None and requirement.specifier.contains(version, prereleases=True)

        return next((place for place, wanted in enumerate(self.alternatives) if all(map(holds, wanted))), -1)


NO_CHOICE = Choice()


def bare(requirement: Requirement) -> str:
    """Return the requirement without its marker."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def applies(requirement: Requirement, environment: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    """Tell whether the marker of a requirement holds on the node."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


@dataclass(frozen=True)
class Metadata:
    """Name, version and requirements of a wheel."""

    name: str
    version: str
    requires: tuple[Requirement, ...]


def read_metadata(wheel: Path) -> Metadata:
    """Return the metadata of a wheel.

    Raises:
        WheelError: the file is not a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
            headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
        requires = tuple(Requirement(text) for text in headers.get_all("Requires-Dist", []))
        return Metadata(str(canonicalize_name(headers["Name"])), str(headers["Version"]), requires)
    except (zipfile.BadZipFile, StopIteration, InvalidRequirement, KeyError, TypeError) as error:
        raise WheelError(f"{wheel} is not a readable wheel ({error!r}); remove it and try again.") from error


def closure(
    wanted: Sequence[Requirement], have: Mapping[str, Metadata], environment: Mapping[str, str]
) -> tuple[set[str], list[str]]:
    """Follow requirements with the markers of the node, not those of the controller.

    Args:
        wanted: the first requirements.
        have: available wheels, by canonical name.
        environment: the variables of the markers.

    Returns:
        The canonical names that are needed, and requirements without a fitting wheel.
    """
    needed: set[str] = set()
    missing: dict[str, None] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [requirement for requirement in wanted if applies(requirement, environment)]
    while queue:
        requirement = queue.pop()
        name, extras = str(canonicalize_name(requirement.name)), frozenset(requirement.extras)
        found = have.get(name)
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            missing[bare(requirement)] = None
            continue
        needed.add(name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        queue += [item for item in found.requires if applies(item, environment, extras)]
    return needed, list(missing)
