"""What is told of a rank that was killed, and of nodes that lacked memory."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from clusterctl.analysis.rank_deaths import MemoryBlame, NodeLoss, RankDeath
from clusterctl.jobs import suspects
from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import LoggedKill, MemoryKills
from clusterctl.remote.supervised_job import JobLogin
from local_jobs import GONE, telling


def test_what_a_node_lost_is_told_with_what_ties_it_to_the_job() -> None:
    plain, logged = NodeLoss(1), NodeLoss(2, log=(LoggedKill(number=1, name="python"), LoggedKill(number=2)))
    end = "to the kernel while the job ran, for lack of memory"
    assert suspects.lost_words("node3", plain, None) == f"node3 lost 1 process {end}"
    assert (
        suspects.lost_words("node3", plain, "peers") == f"node3 lost 1 process {end}, and ranks lost their peer there"
    )
    assert suspects.lost_words("node3", logged, "log") == f"node3 lost 2 processes of the job (python) {end}"
    blamed = MemoryBlame({"node3": "group", "node4": "log"}, ("node5",))
    lost = {"node3": plain, "node4": logged, "node5": plain}
    assert suspects.ours_words(blamed, lost) == (
        f"node3 lost 1 process of the job's user {end}, node4 lost 2 processes of the job (python) {end}"
    )
    assert "killed 1 process on node5 for lack of memory" in suspects.others_words(blamed, lost)


@pytest.mark.parametrize(
    ("node", "killed", "facts", "words"),
    [
        ("gpu-c", 0, (), "gpu-c rank 4 was ended by SIGKILL; who sent it is not known"),
        ("", 0, (), "host3 rank 4 was ended by SIGKILL; who sent it is not known"),
        ("gpu-c", 1, (), "gpu-c rank 4 was ended by SIGKILL: the kernel has killed 1 process of its control group "),
        ("gpu-c", None, ("gpu-c: the node ran out of memory",), "gpu-c rank 4 was ended by SIGKILL: the kernel's log "),
        ("gpu-c", 0, ("gpu-c: the node ran out of memory",), "gpu-c rank 4 was ended by SIGKILL; who sent it is not"),
    ],
)
def test_a_death_has_the_inventorys_name_and_its_reason(
    node: str, killed: int | None, facts: tuple[str, ...], words: str
) -> None:
    assert suspects.death_words(RankDeath(4, "host3", 9), node, killed, facts).startswith(words)


KILLED = MemoryKills(all=1, uid=1001)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_node_that_does_not_tell_its_kills_is_asked_again_and_then_told(silent: int) -> None:
    before = dict.fromkeys(("node1", "node9"), MemoryKills(all=0))
    lost, untold = suspects.lost_since((telling("node1", KILLED, silent=silent), GONE), "unit-suspects", before)
    assert lost == ({} if silent == 2 else {"node1": NodeLoss(1, uid=1001)})
    route = "ssh: connect to host node9 port 22: No route to host"
    timeout = "ssh: connect to host node1 port 22: Connection timed out"
    assert untold == {"node9": route, **({"node1": timeout} if silent == 2 else {})}
    assert suspects.untold_words({"node9": route}) == f"node9 was not asked for kills for lack of memory: {route}."


def test_a_node_whose_kills_before_the_job_are_not_known_is_told() -> None:
    logins = [telling(name, KILLED) for name in ("node1", "node2", "node3")]
    lost, untold = suspects.lost_since(logins, "unit-suspects", {"node1": MemoryKills(), "node3": MemoryKills(all=1)})
    assert lost == {}
    assert suspects.untold_words(untold).startswith("node[1-2] cannot be asked for kills for lack of memory")


@contextlib.contextmanager
def peer(first_line: bytes) -> Iterator[JobLogin]:
    """A machine whose connections bring these bytes, and nothing more: what is larger is lost on the way."""
    kept: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                kept[-1].sendall(first_line)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield JobLogin(Host("node3", "127.0.0.1", port=listener.getsockname()[1]))
        listener.shutdown(socket.SHUT_RDWR)
    for one in kept:
        one.close()


@pytest.mark.parametrize(("first_line", "halted"), [(b"SSH-2.0-OpenSSH_9.2p1\r\n", ("node3",)), (b"", ())])
def test_a_login_that_gets_no_keys_differs_from_a_node_that_says_nothing(
    first_line: bytes, halted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "_LOGIN_S", 3.0)
    with peer(first_line) as login:
        assert suspects.halted_logins([login]) == halted
    assert suspects.halted_logins([GONE]) == ()
