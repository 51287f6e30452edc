from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clusterctl.remote import login_probe


def test_the_quickest_exchange_tells_the_time() -> None:
    found = login_probe.clock_of([(0.0, 12.0, 4.0), (10.0, 15.05, 10.1), (20.0, 26.0, 22.0)])
    assert found is not None
    assert (found.offset_s, found.uncertainty_s) == (pytest.approx(5.0), pytest.approx(0.05))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! / Host key verification failed.", "key_changed"),
        (
            "No ED25519 host key is known for node2 and you have requested strict checking. / Host key verif",
            "key_unknown",
        ),
        ("cluster@10.0.0.2: Permission denied (publickey).", "refused"),
        ("ssh: Could not resolve hostname node2: Name or service not known", "name"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "closed"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", "timeout"),
        ("ssh: connect to host 10.0.0.2 port 22: Permission denied", "timeout"),
        ("ssh: connect to host 10.0.0.2 port 22: Invalid argument", "timeout"),
        ("ssh timed out after 10 s", "timeout"),
        ("ProxyCommand ssh leads ssh through one machine again and again, so no login was tried", "settings"),
        (
            "Connection closed by UNKNOWN port 65535 (through ProxyCommand nc %h %p in /root/.ssh/config line 3)",
            "settings",
        ),
        ("Permission denied (publickey). (through ProxyJump gate in /root/.ssh/config line 3)", "refused"),
        ("kex_exchange_identification: read: Connection reset by peer", "timeout"),
        ("something else", "error"),
    ],
)
def test_what_ssh_says_has_a_kind(said: str, kind: str) -> None:
    assert login_probe.kind_of(said) == kind


def _said(**changed: object) -> dict[str, Any]:
    said = {"mesh": True, "passed": 1, "failures": [], "untried": 0, "keyless": False, "stopped_early": False}
    return {**said, **changed}


def test_what_wins_over_the_mesh_is_told_of_the_asked_nodes_alone() -> None:
    one = {"setting": "requesttty", "value": "force", "where": "/root/.ssh/config line 3"}
    bad = [{**one, "target": "node9"}, {**one, "target": "node2", "setting": "{{ x }}"}]
    found = login_probe.read(_said(overruled=[{**one, "target": "node2"}, *bad]), None, ["node2"])
    assert [one.what for one in found.overruled] == ["RequestTTY force in /root/.ssh/config line 3"]
    with pytest.raises((LookupError, TypeError)):
        login_probe.read(_said(overruled=[7]), None, ["node2"])


def test_a_node_tells_of_the_logins_alone_that_it_was_asked_for() -> None:
    words = "Permission denied " * 100_000
    failures = [{"target": name, "said": words} for name in ("node2", "node9", "node2")] * 1000
    found = login_probe.read(_said(failures=failures), None, ["node2", "node3"])
    assert [(one.target, one.kind) for one in found.failures] == [("node2", "refused")]
    assert len(found.failures[0].said) <= 1000
    assert len(login_probe.read({"problem": words}, None, ["node2"]).problem) <= 1000


@pytest.mark.parametrize("changed", [{"passed": 10**4000}, {"passed": -1}, {"untried": 3}, {"passed": "x"}])
def test_counts_beyond_those_of_the_question_are_another_form(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        login_probe.read(_said(**changed), None, ["node2", "node3"])


class _Talk:
    """A node whose clock says this."""

    def __init__(self, time: object) -> None:
        self._time = time

    async def send(self, _data: bytes) -> None:
        """Take it."""

    async def answer(self, mark: bytes) -> dict[str, Any]:
        return {"time": self._time} if b"clock" in mark else _said()

    async def finish(self) -> None:
        """End."""


@pytest.mark.parametrize("time", ["nan", "inf", -1.0, 1e300])
def test_a_clock_that_no_node_has_is_another_form(time: object) -> None:
    with pytest.raises(ValueError, match="time"):
        asyncio.run(login_probe._converse(_Talk(time), b"", ["node2"]))  # type: ignore[arg-type]  # noqa: SLF001
