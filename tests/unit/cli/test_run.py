from __future__ import annotations

from clusterctl.cli.run import joined


def test_mca_takes_two_words_up_to_the_program() -> None:
    assert joined(["--mca", "a", "-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d"]) == [
        *("--mca=a=-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d")
    ]
