"""The checks that a suite can name, and the three built-in suites: smoke, nightly and full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from clusterctl.model.hosts import InventorySources
from clusterctl.suite import reading
from clusterctl.suite.model import Suite
from clusterctl.suite.options import CheckOptions
from clusterctl.suite.values import nearest
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.results import Unit

BuiltinName: TypeAlias = Literal["smoke", "nightly", "full"]
DEFAULT: BuiltinName = "smoke"
_SMALLER: tuple[BuiltinName, ...] = get_args(BuiltinName)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a suite knows of a check.

    Attributes:
        name: the name in a suite's file and on the command line.
        order: its place among the checks of a run; a check with a lower number runs earlier.
        options: the model of its options.
        measures: the unit of each quantity that a reference can name.
        first_suite: the smallest built-in suite that runs it, and all larger ones do; None is only on request, by a
            suite file or ``--checks``.
        tuned: its options in a built-in suite, where they differ from the defaults of the model.
    """

    name: str
    order: int
    options: type[CheckOptions] = CheckOptions
    measures: Mapping[str, Unit] = field(default_factory=dict)
    first_suite: BuiltinName | None = "nightly"
    tuned: Mapping[BuiltinName, CheckOptions] = field(default_factory=dict)


class Catalogue:
    """The known checks in the order in which they run, and the suites that are made of them."""

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        """Sort the declarations.

        Args:
            declarations: one for each check.

        Raises:
            ValueError: two checks have the same name or the same place.
        """
        found = sorted(declarations, key=lambda one: one.order)
        for what, times in (Counter(one.name for one in found) + Counter(one.order for one in found)).items():
            if times > 1:
                raise ValueError(f"two checks have the name or the order {what!r}")
        self.checks: Mapping[str, Declaration] = {one.name: one for one in found}
        self.suites: Mapping[str, Suite] = {name: self._builtin(name) for name in get_args(BuiltinName)}

    def _builtin(self, name: BuiltinName) -> Suite:
        return Suite(
            name=name,
            checks={
                one.name: one.tuned.get(name) or one.options()
                for one in self.checks.values()
                if one.first_suite is not None and _SMALLER.index(one.first_suite) <= _SMALLER.index(name)
            },
        )

    def ordered(self, options: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
        """Return options in the order in which the checks run."""
        return {name: options[name] for name in self.checks if name in options}

    def options(self, name: str) -> CheckOptions:
        """Return the options of a check that a suite does not run, those of nightly."""
        one = self.checks[name]
        return one.tuned.get("nightly") or one.options()

    def builtin(self, name: str) -> Suite:
        """Return a built-in suite.

        Raises:
            ConfigError: the name is unknown.
        """
        if name not in self.suites:
            raise ConfigError(f"Unknown suite '{name}'; {nearest(name, self.suites, 'the suites are')}")
        return self.suites[name]

    def parse(self, text: str, place: str) -> Suite:
        """Read a suite from the text of a file.

        Args:
            text: what the file holds.
            place: the name of the file in messages.

        Raises:
            ConfigError: the text is wrong; the message gives the line and the cure.
        """
        return reading.SuiteFile(text, place, self).suite()

    def load(self, path: Path | None, name: str | None = None) -> Suite:
        """Return the suite of a run.

        Args:
            path: the user's ``validation.yml``, None where there is none.
            name: the suite's name. None is the file's own suite, or smoke without a file. A built-in suite that the
                file does not extend gives its checks; references and thresholds stay those of the file.

        Raises:
            ConfigError: the file is unreadable or wrong, or the suite is unknown.
        """
        if path is None:
            return self.builtin(name or DEFAULT)
        own = self.parse(_text(path), str(path))
        if name is None or name == own.name:
            return own
        if name not in self.suites:
            known = {**self.suites, own.name: own}
            raise ConfigError(f"Unknown suite '{name}' in {path}; {nearest(name, known, 'the suites are')}")
        return own.model_copy(update={"name": name, "checks": self.suites[name].checks, "external": ()})


def beside(inventory: AnyInventory) -> Path | None:
    """Return the ``validation.yml`` beside an inventory file or in an inventory folder, None where there is none.

    Of several inventories the last one that has the file counts, as for variables.
    """
    places = [path if path.is_dir() else path.parent for path in InventorySources.of(inventory).paths]
    found = [place / "validation.yml" for place in places if (place / "validation.yml").is_file()]
    return found[-1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no file {path}; give the path of a suite file, or leave it out for the built-in suites."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give the path of a readable file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is not UTF-8 text. Save it as UTF-8.") from None
