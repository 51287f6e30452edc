# SPDX-License-Identifier: Apache-2.0
"""Run the look at the hardware as a program: read a request, print the record as one line of JSON."""

from __future__ import annotations

import json
import sys

from .record import collect


def main(arguments: list[str]) -> int:
    """Print the record of this node, and return 0.

    Args:
        arguments: the request as JSON, or else variables of the session that called sudo, which are not needed here.
            Without a request among them, the request is on stdin.
    """
    given = arguments[0] if arguments and arguments[0].startswith("{") else sys.stdin.buffer.read().decode("utf-8")
    record = collect(json.loads(given or "{}"))
    sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
