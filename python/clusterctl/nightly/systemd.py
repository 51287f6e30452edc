"""The timer and the service of a job, quoted by the rules of systemd. Pure.

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
_NOT_IN_A_PROGRAM = frozenset("'\"\\$")  # systemd refuses them in the path of the program, even quoted
_LONGEST_NIGHT = "20h"  # a night that hangs must not cost the next night


def unit_name(job: str) -> str:
    """Return the name of a job's units, without the suffix."""
    return f"clusterctl-nightly-{job}"


def quoted(word: str) -> str:
    """Quote one word of a command line.

    Raises:
        ConfigError: it holds a control character.
    """
    refuse_control_characters(word)
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def service(job: str, argv: Sequence[str], scope: Scope) -> str:
    """Return the service that runs a night.

    Args:
        job: the job's name.
        argv: the command; the first word is an absolute path.
        scope: only the system manager knows when the network is up.

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
    """Return the timer that starts the service, and starts it late where the machine was off."""
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
    """Whether a unit file was written for this job."""
    return text.startswith(f"{MARK}{job}\n")


def refuse_control_characters(word: str) -> None:
    """Refuse a control character: units, crontab lines and file names cannot hold one.

    Raises:
        ConfigError: the word holds a control character.
    """
    if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in word):
        raise ConfigError(f"{word!r} holds a control character, which a schedule cannot carry; rename it.")
