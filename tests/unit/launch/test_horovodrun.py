from __future__ import annotations

from clusterctl.launch import horovodrun


def test_horovodrun_has_ranks_share_slots_on_purpose() -> None:
    for version, words in (
        ("5.0.7", "--binding-args=--bind-to none --map-by slot:OVERSUBSCRIBE"),
        ("4.1.4", "--mpi-args=--oversubscribe"),
    ):
        line = horovodrun.argv(horovodrun.HorovodrunLaunch(version, {"a": 1}, ("x",), ranks=2, oversubscribe=True))
        assert words in line
