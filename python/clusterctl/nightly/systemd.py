"""The timer and the service of a job, quoted by systemd's own rules; pure.

The rules are those of systemd.syntax(7) ("Quoting"), systemd.service(5) ("Command lines") and systemd.unit(5)
("Specifiers").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.nightly import schedule
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import time

    from clusterctl.nightly.records import Scope

MARK = "# Written by 'clusterctl nightly enable'; 'clusterctl nightly disable' removes it. Job: "
_NOT_IN_A_PROGRAM = frozenset("'\"\\$")  # systemd refuses them in the program's own path, however they are quoted
_LONGEST_NIGHT = "20h"  # so that whatever hangs does not cost the night after it as well


def unit_name(job: str) -> str:
    """Return the name of a job's units, without their ending."""
    return f"clusterctl-nightly-{job}"


def quoted(word: str) -> str:
    """Quote one word of a command line.

    Raises:
        ConfigError: it holds a control character, which has no place in a path of ours.
    """
    refuse_control_characters(word)
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def service(job: str, argv: Sequence[str], scope: Scope) -> str:
    """Return the service that runs a night.

    Args:
        job: the job's name.
        argv: what it runs; the first is an absolute path.
        scope: only the system's manager knows when the network is up.

    Raises:
        ConfigError: a word cannot be written into a unit.
    """
    if not argv[0].startswith("/") or _NOT_IN_A_PROGRAM & set(argv[0]):
        raise ConfigError(
            f"systemd cannot start {argv[0]!r}: a unit names its program by an absolute path without quotes, '\\\\' "
            "and '$'; install clusterctl elsewhere."
        )
    network = "Wants=network-online.target\nAfter=network-online.target\n" if scope == "system" else ""
    return (
        f"{MARK}{job}\n"
        "[Unit]\n"
        f"Description=clusterctl night of {job}\n"
        f"{network}"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"ExecStart={' '.join(map(quoted, argv))}\n"
        f"TimeoutStartSec={_LONGEST_NIGHT}\n"
        "UMask=0077\n"
    )


def timer(job: str, at: time) -> str:
    """Return the timer that starts it, also late where the machine was off at the time."""
    return (
        f"{MARK}{job}\n"
        "[Unit]\n"
        f"Description=clusterctl nights of {job}\n"
        "\n"
        "[Timer]\n"
        f"OnCalendar={schedule.on_calendar(at)}\n"
        "Persistent=true\n"
        "AccuracySec=1s\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


def is_ours(text: str, job: str) -> bool:
    """Whether a unit file is one that was written for this job."""
    return text.startswith(f"{MARK}{job}\n")


def refuse_control_characters(word: str) -> None:
    """Refuse what no unit, crontab line or file of ours may hold.

    Raises:
        ConfigError: there is a control character (a newline ends a line of any of them).
    """
    if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in word):
        raise ConfigError(f"{word!r} holds a control character, which no schedule can carry; rename it.")
