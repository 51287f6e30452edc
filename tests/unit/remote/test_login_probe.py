from __future__ import annotations

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
        ("ssh timed out after 10 s", "timeout"),
        ("kex_exchange_identification: read: Connection reset by peer", "timeout"),
        ("something else", "error"),
    ],
)
def test_what_ssh_says_has_a_kind(said: str, kind: str) -> None:
    assert login_probe.kind_of(said) == kind
