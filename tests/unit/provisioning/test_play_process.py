"""The log of a run holds no character that a terminal obeys."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.provisioning import playbook

_BLOCK = 1 << 20


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"x" * (_BLOCK - 15) + b"\xc2\x9b31m", id="split"),
        pytest.param(b"\xc2\x1b\x9b31m", id="joined"),
        pytest.param(b"\xc2\xc2\x9b\x9b31m", id="nested"),
        pytest.param(b"\x1b[31m\x9b31m\r\x00", id="plain"),
    ],
)
def test_no_control_character_of_a_node_reaches_the_log(said: bytes, tmp_path: Path) -> None:
    stdout = tmp_path / "artifacts" / "run" / "stdout"
    stdout.parent.mkdir(parents=True)
    stdout.write_bytes("ERROR! ä\tone\n".encode() + said)
    log = tmp_path / "log"
    playbook.keep_log(tmp_path, log)
    text = log.read_text(encoding="utf-8")
    assert text.startswith("ERROR! ä\tone\n")
    assert [letter for letter in text if not letter.isprintable() and letter not in "\t\n"] == []
