# SPDX-License-Identifier: Apache-2.0
"""Machine checks of the processors, as their interrupts count them.

The rows of /proc/interrupts are those of arch/x86/kernel/irq.c of Linux; other architectures have none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_INTERRUPTS = "/proc/interrupts"
_MOST_BYTES = 1 << 24  # a row has a number for each processor, and these rows are the last ones
_ROWS = {b"MCE": "machine check exceptions", b"MCP": "machine check polls", b"THR": "threshold interrupts"}


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the sum of each row over all processors."""
    data = tree.data(_INTERRUPTS, _MOST_BYTES) or b""
    for line in data.splitlines():
        name, colon, rest = line.partition(b":")
        what = _ROWS.get(name.strip()) if colon else None
        if what:
            counts = [word for word in rest.split() if word.isdigit()]
            answer.counter("machine check", "", what, sum(int(word) for word in counts))
