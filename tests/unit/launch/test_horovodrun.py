from __future__ import annotations

import pytest
from clusterctl.launch import compose, mpirun


def test_horovodrun_has_ranks_share_slots_on_purpose() -> None:
    for version, words in (
        ("5.0.7", "--binding-args=--bind-to none --map-by slot:OVERSUBSCRIBE"),
        ("4.1.4", "--mpi-args=--oversubscribe"),
    ):
        line = compose.argv(compose.HorovodrunLaunch(version, {"a": 1}, ("x",), ranks=2, oversubscribe=True))
        assert words in line


@pytest.mark.parametrize(("version", "word"), [("5.0.7", "package"), ("4.1.4", "socket")])
def test_horovodrun_places_ranks_as_asked(version: str, word: str) -> None:
    line = compose.argv(
        compose.HorovodrunLaunch(version, {"a": 2}, ("x",), bind=mpirun.Bind.CORE, map_by=mpirun.MapBy.SOCKET)
    )
    assert f"--binding-args=--bind-to core --map-by {word}" in line
