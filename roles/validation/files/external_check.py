"""Run a check of the user's as a rank, and pass on its output, one JSON line a line (see ``rank_program.py``).

The program starts from its argv, without a shell. This rank gives signs of life for it. When the rank is ended, the
program ends too. An exit code other than 0 is a wrong answer of this rank.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import rank_program

MOST_BYTES = 1 << 20  # bytes of output to pass on; a benchmark prints some kilobytes
LINE_BYTES = 600  # a byte may take six in JSON, and a line stays below what a pipe writes in one piece
GIVEN = dict(os.environ)  # before our own checks limit their threads


def start(argv: list[str], rank: rank_program.Rank) -> subprocess.Popen[bytes] | None:
    """Start the program, or note why it cannot be."""
    program = shutil.which(argv[0])
    if program is None:
        rank.findings.note("the program", f"{argv[0]} on this node", "no such program, or none that may be run")
        return None
    try:
        return subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=GIVEN,
            preexec_fn=rank_program.end_with_parent,  # noqa: PLW1509 - this process has no threads
        )
    except OSError as error:
        rank.findings.note("the program", f"{argv[0]} to start", str(error.strerror))
        return None


def pass_on(running: subprocess.Popen[bytes], rank: rank_program.Rank) -> None:
    """Print the program's output; excess output is read and dropped, so that the program can continue."""
    assert running.stdout is not None  # noqa: S101 - it was asked for
    left = MOST_BYTES
    for line in iter(lambda: running.stdout.readline(LINE_BYTES), b""):  # type: ignore[union-attr]
        if left > 0:
            text = line.decode("utf-8", "replace")
            rank.voice.say("output", text=text.rstrip("\n"), whole=text.endswith("\n"))
        elif left > -LINE_BYTES:
            rank.voice.say("output", text=f"[more than {MOST_BYTES} bytes; the rest is left out]", whole=True)
            left = -LINE_BYTES
        left -= len(line) if left > 0 else 0


def work(rank: rank_program.Rank) -> int:
    rank.libraries = ()  # the program is another process
    arguments = rank.arguments

    def body() -> None:
        rank.begin()
        if arguments.first and rank.rank != 0:
            rank.findings.value("this rank has nothing to do", 0, 0)
            return
        rank.doing(f"{arguments.argv[0]}")
        running = start(arguments.argv, rank)
        if running is None:
            return
        pass_on(running, rank)
        code = running.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        rank.findings.value(f"{arguments.argv[0]}", how, "exit code 0")

    rank.attempt(body)
    return rank.code if arguments.together else 0  # mpirun ends all others when a rank leaves with an error


def argv_of(text: str) -> list[str]:
    """Return the words of a JSON list."""
    words = json.loads(text)
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        raise ValueError("no list of words")
    return words


def main() -> int:
    """Say that this rank is up, then run the program."""
    parser = rank_program.parser("Run a program of the user's. Started by mpirun.", ["external"])
    parser.add_argument("--argv", type=argv_of, required=True, help="the program and its arguments, a JSON list")
    parser.add_argument("--first", action="store_true", help="the first rank alone runs it")
    parser.add_argument("--together", action="store_true", help="the ranks are one job, which ends when one fails")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
