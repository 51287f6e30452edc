from __future__ import annotations

import subprocess

import pytest
from clusterctl.launch import compose
from clusterctl.launch.compose import Launcher, Wish
from clusterctl.launch.mpirun_job import Member
from factory import provisioned

NODES = ("node1", "node2", "node3")


@pytest.mark.parametrize("launcher", list(Launcher))
def test_no_value_of_the_user_becomes_an_option_or_shell_text(launcher: Launcher) -> None:
    nasty = "$(id); `id` ' \" -H x \\ {port} {work_dir}"
    members = {name: Member(provisioned(name, number), 2, "5.0.7") for number, name in enumerate(NODES, 1)}
    wish = Wish(
        ("./a.py", nasty), launcher, exported=(f"A={nasty}",), mca={"btl_tcp_links": nasty}, directory=f"/x {nasty}"
    )
    plan = compose.compose(members, "node2", wish, "run-0123456789ab")
    assert plan.argv[-1] == nasty
    assert plan.literal >= 1
    assert plan.environment["A"] == nasty
    if launcher is Launcher.HOROVODRUN:  # it hands them to a shell, which is to see words
        (given,) = (word for word in plan.argv if word.startswith("--mpi-args="))
        shown = subprocess.run(
            ["sh", "-c", f"printf '%s\\n' {given.removeprefix('--mpi-args=')}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.split("\n")[2] == nasty
    else:
        assert plan.argv.count(nasty) == 2
    pasted = subprocess.run(["sh", "-c", f"printf '%s\\n' {plan.shown()}"], capture_output=True, text=True, check=True)
    assert pasted.stdout.splitlines()[-1] == nasty


@pytest.mark.parametrize(("version", "count", "waits"), [("5.0.7", 2, True), ("5.0.7", 1, False), ("4.1.4", 2, False)])
def test_ranks_live_long_enough_for_mpirun_of_5_to_hear_of_their_end(version: str, count: int, waits: bool) -> None:
    names = [f"node{number}" for number in range(1, count + 1)]
    members = {name: Member(provisioned(name, version=version), 2, version) for name in names}
    wish = Wish(("hostname", "-s"))
    ran = compose.compose(members, "node1", wish, job="20261121T000000Z-run-1")
    assert ("/bin/sh" in ran.argv) is waits
    assert (ran.argv[-2:], ran.literal) == (("hostname", "-s"), 2)
    assert "/bin/sh" not in compose.compose(members, "node1", wish).shown()
