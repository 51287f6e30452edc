"""What doctor says of the programs that login sessions and units of systemd find."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.diagnosis.rules import launchable, machine, registry
from clusterctl.model.facts import LoginState, NodeFacts
from clusterctl.model.hosts import Host
from clusterctl.model.probe import Probe
from clusterctl.remote import facts
from doctor_view import Change, Record, record_of, seen

OURS = {"mpirun": "/usr/local/openmpi/bin/mpirun", "python3": "/usr/local/python_env/bin/python3"}
HOME = record_of("node1")["user"]["home"]
NAME = record_of("node1")["user"]["name"]


def finding(kind: str = "login", place: str = "", **paths: str) -> Change:
    """Return what has a kind of session find these programs instead of the cluster's."""

    def change(record: Record) -> None:
        row = {"kind": kind, "problem": ""}
        sound = [{**row, "name": name, "path": path, "own": True} for name, path in OURS.items() if name not in paths]
        lost = [{**row, "name": name, "path": path, "own": False, "place": place} for name, path in paths.items()]
        record["sessions"] = [*record.get("sessions", []), *sound, *lost]

    return change


def problem(word: str, place: str = "") -> Change:
    return lambda record: record.update(sessions=[{"kind": "login", "problem": word, "place": place}])


def told(change: Change) -> tuple[list[str], list[str]]:
    """Return the findings on a cluster with one changed node, each with its cure, and the notes."""
    view = seen(node3=change)
    assert {(one.check, one.severity, one.hosts) for one in registry.diagnose(view)} <= {
        ("session", "warning", ("node3",))
    }
    return [f"{one.cause} → {one.cure}" for one in registry.diagnose(view)], list(machine.login_notes(view))


def test_a_node_that_finds_the_clusters_programs_has_no_finding() -> None:
    assert told(finding()) == ([], [])
    assert told(lambda _record: None) == ([], []), "a record without them"


@pytest.mark.parametrize(
    "place", ["/etc/profile line 35", "/etc/profile.d/zzz-site.sh line 2", f"{HOME}/.profile line 9"]
)
def test_the_line_that_takes_mpirun_away_is_one_warning_with_all_it_takes(place: str) -> None:
    (cause,), notes = told(finding(place=place, mpirun="/usr/bin/mpirun", python3="/usr/bin/python3"))
    assert notes == []
    what = "mpirun is /usr/bin/mpirun and python3 is /usr/bin/python3"
    assert cause.startswith(f"in a login session of user {NAME}, {what}, because of {place} → have that line put its")
    assert "'source /etc/clusterctl/activate'" in cause


def test_a_missing_mpirun_and_an_unknown_place_are_told() -> None:
    (cause,), _notes = told(finding(mpirun=""))
    assert cause.startswith(f"in a login session of user {NAME}, mpirun is missing → look for what sets PATH in the ")


def test_the_users_own_choice_of_a_python_is_a_note_and_that_of_a_site_a_warning() -> None:
    conda = f"{HOME}/.bashrc line 117"
    found, (note,) = told(finding(place=conda, python3="/opt/conda/bin/python3"))
    assert found == []
    path = "/opt/conda/bin/python3"
    assert note == f"node3: python3 in a login session of user {NAME} is {path}: {conda} is the user's own, and wins"
    found, notes = told(finding(place="/etc/profile.d/conda.sh line 4", python3="/opt/conda/bin/python3"))
    assert (len(found), notes) == (1, [])
    assert len(told(finding(place=f"{HOME}2/.bashrc line 1", python3="/x/python3"))[0]) == 1, "another's home"
    assert len(told(finding("made up", conda, python3="/x/python3"))[1]) == 1, "a node may say anything"


def test_a_manager_of_systemd_that_started_earlier_is_told_with_its_cure() -> None:
    (cause,), _notes = told(finding("systemd", mpirun="/usr/bin/mpirun"))
    assert cause.startswith(f"in a unit of systemd of user {NAME}, mpirun is /usr/bin/mpirun → end all sessions of ")
    assert "'systemctl --user daemon-reload'" in cause


def test_a_file_that_cannot_be_read_is_told_by_its_own_name() -> None:
    (cause,), _notes = told(problem("unreadable", "/etc/shadow"))
    assert cause.startswith(f"user {NAME} cannot read /etc/clusterctl/activate, so")
    (one,) = registry.diagnose(seen(node3=problem("unreadable", "/etc/shadow")))
    assert one.fix == (("chmod", "644", "/etc/clusterctl/activate"),), "a node does not choose what root changes"


def test_a_login_that_ran_no_command_is_a_note() -> None:
    found, (note,) = told(problem("ended", f"{HOME}/.bashrc line 3"))
    assert found == []
    assert note == (
        f"node3: a login session of user {NAME} ended before it ran a command, at {HOME}/.bashrc line 3; what it finds "
        "is unknown"
    )
    assert "ran no command in time" in told(problem("silent"))[1][0]
    view = seen(node3=problem("ended"))
    assert list(machine.login_notes(view))
    nologin = LoginState.model_validate({"shell": "/usr/sbin/nologin"})
    nodes = {"node3": view.nodes["node3"].model_copy(update={"login": nologin})}
    assert list(machine.login_notes(dataclasses.replace(view, nodes=nodes))) == [], "that shell is a finding already"


def foreign(record: Record) -> None:
    own = {"name": "mpirun", "own": OURS["mpirun"], "own_real": OURS["mpirun"], "own_state": "ok"}
    record["launch"] = [{**own, "path": "/opt/foreign/bin/mpirun", "real": "/opt/foreign/bin/mpirun"}]


def test_what_every_session_finds_is_told_once() -> None:
    def change(record: Record) -> None:
        foreign(record)
        finding(mpirun="/opt/foreign/bin/mpirun")(record)

    (one,) = registry.diagnose(seen(node3=change))
    assert one.cause.startswith("mpirun of a session is /opt/foreign/bin/mpirun")


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        (lambda _record: None, True),
        (lambda record: record["user"].update(name="root"), False),
        (lambda record: record.update(job_user={"name": "mpi", "uid": 51620}), False),
        (lambda record: record.update(job_user={"name": "mpi", "uid": -1}), True),
        (lambda record: record.update(job_user={"name": record["user"]["name"], "uid": 1000}), True),
    ],
)
def test_only_an_account_that_runs_jobs_has_to_find_the_clusters_mpirun_first(change: Change, *, is_told: bool) -> None:
    record = record_of("node1")
    foreign(record)
    change(record)
    assert bool(launchable.foreign_mpirun(NodeFacts.model_validate(record))) == is_told


def test_a_session_without_a_library_path_is_sound() -> None:
    """The cluster's programs have a RUNPATH, and the loader's cache may name another MPI."""

    def without(record: Record) -> None:
        (mpi,) = [one for one in record["libraries"] if one["soname"] == "libmpi.so.40"]
        mpi.update(path="", real="", via="")

    def of_debian(record: Record) -> None:
        (mpi,) = [one for one in record["libraries"] if one["soname"] == "libmpi.so.40"]
        mpi.update(path="/lib/x86_64-linux-gnu/libmpi.so.40", real="/lib/x/libmpi.so.40.30.4", via="/etc/ld.so.cache")

    assert registry.diagnose(seen(node2=without, node3=of_debian)) == ()


def test_login_sessions_are_asked_for_by_doctor_as_the_account_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, bool]] = []

    def gather(hosts: Any, **given: Any) -> Probe:
        asked.extend((host.user, given.get("sessions", False)) for host in hosts)
        account = {"name": "mpi", "uid": 51620, "home": "/home/mpi", "shell": "/bin/bash"}
        record = {**record_of("node1"), "job_user": account}
        return Probe({host.name: NodeFacts.model_validate(record) for host in hosts}, {})

    monkeypatch.setattr(facts, "gather", gather)
    hosts = [Host("node1", "node1", user="ubuntu", variables={"cluster_user": "mpi"})]
    for more in ({}, {"sessions": True}):
        first = doctor._look(hosts, tmp_path, lambda _count: None, **more)  # noqa: SLF001 - examine needs a network
        doctor.as_jobs_see_it(hosts, first, tmp_path, **more)
    assert asked == [("ubuntu", False), ("mpi", False), ("ubuntu", True), ("mpi", True)]
