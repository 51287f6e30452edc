"""The look at the nodes after a failed job: who is to blame for a login that mpirun needs."""

from __future__ import annotations

import pytest
from clusterctl.model.findings import Finding
from clusterctl.remote.login_probe import LoginFailure, LoginReport
from clusterctl.validation.check_runner import refused_by_few

REFUSED = LoginFailure("node3", "refused", "Permission denied (publickey)")
FOUND = Finding("ssh", "error", ("node1", "node3"), "the login from node1 to node3 fails", "run 'clusterctl provision'")


def test_a_node_that_refuses_a_key_that_the_others_accept_is_named_alone() -> None:
    reports = {"node1": LoginReport(mesh=True, passed=4, failures=(REFUSED,))}
    assert [one.hosts for one in refused_by_few([FOUND], reports, "node1")] == [("node3",)]


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(LoginReport(mesh=True, passed=1, failures=(REFUSED,)), id="as many refuse it"),
        pytest.param(
            LoginReport(mesh=True, passed=4, failures=(LoginFailure("node3", "timeout", "timed out"),)), id="no answer"
        ),
    ],
)
def test_other_failures_stay_with_both_ends(report: LoginReport) -> None:
    assert [one.hosts for one in refused_by_few([FOUND], {"node1": report}, "node1")] == [("node1", "node3")]
