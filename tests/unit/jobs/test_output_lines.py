from __future__ import annotations

from typing import Literal

import pytest
from clusterctl.jobs.output_lines import Prefixer


@pytest.mark.parametrize("prefix", ["rank", "host", "none"])
def test_a_rank_of_more_digits_than_a_number_has_is_text(prefix: Literal["rank", "host", "none"]) -> None:
    got: list[bytes] = []
    line = b"[1," + b"9" * 5000 + b"]<stdout>: one\n"
    Prefixer(("node1",), prefix, lambda _stream, data: got.append(data))("stdout", line)
    assert got == [line]


def test_prefixes_take_the_place_of_mpiruns_tags() -> None:
    got: list[tuple[str, bytes]] = []
    for prefix, first in (("rank", b"[2]"), ("host", b"[node2]")):
        got.clear()
        prefixer = Prefixer(("node1", "node1", "node2"), prefix, lambda *two: got.append(two))  # type: ignore[arg-type]
        prefixer("stdout", b"[1,2]<stdout>: one\n[1,2]<std")
        prefixer("stdout", b"out>:two\nmpirun's own\n")
        prefixer("stderr", b"[1,0]<stderr>: open")
        prefixer.end()
        assert b"".join(data for stream, data in got if stream == "stdout") == (
            first + b" one\n" + first + b" two\nmpirun's own\n"
        )
        assert got[-1] == ("stderr", (b"[0]" if prefix == "rank" else b"[node1]") + b" open")
    got.clear()
    Prefixer((), "none", lambda *two: got.append(two))("stdout", b"[1,2]<stdout>: one\n")
    assert got == [("stdout", b"one\n")]
