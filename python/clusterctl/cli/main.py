"""The entry point: finds the command, and turns each way it can end into one sentence and an exit code.

``clusterctl --help`` is answered from the table of commands alone: importing typer costs four times the start of
Python. A command imports its own module only.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from clusterctl.cli import output
from clusterctl.cli.commands import GROUPS
from clusterctl.support.errors import ClusterctlError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPLETION = "_CLUSTERCTL_COMPLETE"

_HELP = """\
Usage: clusterctl COMMAND [OPTIONS] [ARGUMENTS]

  Turn machines that answer ssh into one proven MPI/NCCL cluster.

First steps:
  clusterctl init inventory.ini         then name your machines in it
  clusterctl doctor inventory.ini       see what would hurt, before or after
  clusterctl provision inventory.ini    bare hosts become one proven cluster
  clusterctl validate inventory.ini     prove it again
  clusterctl run inventory.ini -- ./a   start a program on all of it

Commands:
{commands}

Options:
  --version     Show the version.
  -h, --help    Show this page; 'clusterctl COMMAND --help' explains a command.
  --install-completion, --show-completion    For the shell that you use.
"""


def help_text() -> str:
    """Return the page of ``clusterctl --help``."""
    width = max(map(len, GROUPS))
    return _HELP.format(commands="\n".join(f"  {name:{width}}  {', '.join(its)}" for name, its in GROUPS.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if _COMPLETION not in os.environ and (not argv or argv[0] in {"-h", "--help"}):
            (sys.stdout if argv else sys.stderr).write(help_text())
            sys.stdout.flush()
            return ExitCode.OK if argv else ExitCode.USAGE
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        try:
            return _run(argv)
        except KeyboardInterrupt:
            output.say("Interrupted.")
            return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit) as end:  # the reader of our output went away, for example 'head'
        # Rich and typer turn the error into an exit with 1.
        if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):
            raise
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        return 128 + signal.SIGPIPE
    except OSError as error:  # of the help page: a full disk
        return _explain(error, argv)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _run(argv: list[str]) -> int:
    import typer  # noqa: PLC0415 - the help page does without it

    from clusterctl.cli.app import application  # noqa: PLC0415 - the help page does without it

    try:
        app = application(() if _COMPLETION in os.environ else argv)
        code = app(argv, prog_name="clusterctl", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence instead of a traceback
        if isinstance(error, _usage_errors()):
            error.message = _in_our_words(error.message)
            error.show()
            return int(error.exit_code)
        return _explain(error, argv)
    return code if isinstance(code, int) else ExitCode.OK


def _in_our_words(message: str) -> str:
    """Return a message of typer without the words of its own parser."""
    return (
        message.replace("Value error, ", "").replace("Input should be", "it must be").partition(", unable to parse")[0]
    )


def _usage_errors() -> Any:
    """Return the base of typer's own errors, which it keeps under a name that differs between its releases."""
    import typer  # noqa: PLC0415 - see _run

    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _explain(error: Exception, argv: Sequence[str]) -> int:
    """Print what ended the command: our own errors as they are, anything else with the place of its traceback."""
    if isinstance(error, ClusterctlError):
        output.tell(str(error))
        return int(error.exit_code)
    from clusterctl.state import paths  # noqa: PLC0415 - only here

    if words := paths.full_disk_words(error):
        output.tell(words)
        return ExitCode.BAD_CONFIG
    if isinstance(error, OSError) and _is_named(error.filename, argv):
        output.tell(f"{error.filename} cannot be used: {error.strerror}; give another path.")
        return ExitCode.BAD_CONFIG
    if any(word.startswith("-vvv") for word in argv):
        import traceback  # noqa: PLC0415 - only here

        traceback.print_exception(error)
        return ExitCode.BAD_CONFIG
    place = _keep_traceback(error)
    words = " ".join(str(error).split())[:300] or "no message"
    output.tell(
        f"This should not have happened ({type(error).__name__}: {words}); "
        + (f"the details are in {place}, please report them." if place else "repeat it with -vvv for the details.")
    )
    return ExitCode.BAD_CONFIG


def _is_named(filename: object, argv: Sequence[str]) -> bool:
    """Whether the path of an error is one of the command line, or above or below one."""
    if not isinstance(filename, str):
        return False
    words = [word.rpartition("=")[2].removeprefix("@") for word in argv]
    try:
        place = Path(filename).absolute()
        named = {Path(word).absolute() for word in words if word}
        above = {parent for word in words if "/" in word for parent in Path(word).absolute().parents}
    except OSError:  # the working directory is gone
        return False
    return place in named | above or not named.isdisjoint(place.parents)


def _keep_traceback(error: Exception) -> Path | None:
    import traceback  # noqa: PLC0415 - only here
    from datetime import datetime, timezone  # noqa: PLC0415 - only here

    from clusterctl.state import paths  # noqa: PLC0415 - only here

    try:
        folder = paths.ensure_private(paths.crashes_dir())
        place = folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.getpid()}.txt"
        place.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        place.chmod(0o600)
    except OSError:
        return None
    return place
