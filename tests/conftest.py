"""The environment of all tests: programs that they start see no width, unless a test sets one.

readline, which pytest loads, exports COLUMNS and LINES to every program that is started, past os.environ.

jsonschema finds no rfc3987_syntax, whose grammars are compiled in every worker: no schema here has an IRI.

A test that fails is told at once, since a run that is ended early prints no summary.
"""

from __future__ import annotations

import os
import sys

import pytest
from long_groups import LeftOut

for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


class ToldAtOnce:
    """Prints the name and the end of the report of each failed test while the run goes on."""

    LINES = 40

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        self.terminal.write_line(f"\nFAILED now: {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
        for line in report.longreprtext.splitlines()[-self.LINES :]:
            self.terminal.write_line(f"  {line}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ToldAtOnce(terminal))
    config.pluginmanager.register(LeftOut(config))
