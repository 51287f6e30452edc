"""What doctor advises for a code of NVIDIA's catalogue."""

from __future__ import annotations

import pytest
from clusterctl.diagnosis import xid_catalogue


@pytest.mark.parametrize("code", ["8", "11", "13", "25", "31", "39", "43", "44", "45", "68", "69", "98", "137"])
def test_what_a_program_causes_blames_no_hardware(code: str) -> None:
    assert xid_catalogue.cure(code, "0000:3b:00.0") is None


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        ("48", "error", "--gpu-reset -i 0000:3b:00.0"),
        ("63", "warning", "when it is free"),
        ("64", "error", "have it replaced"),
        ("74", "error", "--gpu-reset"),
        ("79", "error", "restart it"),
        ("94", "warning", "when it is free"),
        ("95", "error", "--gpu-reset"),
        ("119", "error", "--gpu-reset"),
        ("140", "error", "--gpu-reset"),
        ("99999", "warning", "catalogue"),
    ],
)
def test_what_the_hardware_needs_is_said(code: str, severity: str, words: str) -> None:
    found = xid_catalogue.cure(code, "0000:3b:00.0")
    assert found is not None
    assert found[0] == severity
    assert words in found[1]


def test_every_row_has_a_number_and_a_meaning() -> None:
    assert all(code.isdigit() and row.meaning for code, row in xid_catalogue.XIDS.items())
