"""What a user sees of mpirun's own output, however the bytes arrive."""

from __future__ import annotations

import pytest
from clusterctl.jobs.output_lines import NoiseFilter

# From tests/data/sweeps/mpi-5.0.7.log and tests/data/validation/asleep-4.1.8.log.
OF_5 = b"[node1:00894] plm:ssh: Warning: setpgid(897,897) failed in parent with errno=Permission denied(13)\n"
OF_4 = b"[node1:03185] plm:rsh: Warning: setpgid(3189,3189) failed in parent with errno=Permission denied(13)\n"
MEANT = b"[node1:00894] plm:ssh: a line that matters\nloss 0.5\r[2/9] half a line"


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("noise", [OF_5, OF_4])
def test_the_warning_of_setpgid_never_arrives_and_all_else_does(noise: bytes, step: int) -> None:
    got: list[tuple[str, bytes]] = []
    noisy = NoiseFilter(lambda *two: got.append(two))
    data = noise + noise + MEANT
    for start in range(0, len(data), step):
        noisy("stderr", data[start : start + step])
    noisy.end()
    assert b"".join(piece for _, piece in got) == MEANT


def test_what_cannot_become_the_warning_is_not_held_back() -> None:
    got: list[tuple[str, bytes]] = []
    noisy = NoiseFilter(lambda *two: got.append(two))
    noisy("stderr", b"Password: ")
    noisy("stderr", b"\n[17%] of it")
    noisy("stdout", OF_5)  # a program may print what it likes
    assert got == [("stderr", b"Password: "), ("stderr", b"\n[17%] of it"), ("stdout", OF_5)]


def test_a_warning_at_the_very_end_is_left_out_too() -> None:
    got: list[tuple[str, bytes]] = []
    noisy = NoiseFilter(lambda *two: got.append(two))
    noisy("stderr", OF_5.rstrip())
    noisy.end()
    assert got == []
