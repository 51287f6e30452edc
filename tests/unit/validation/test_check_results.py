"""Every bad check names nodes, or says that they are not known and what to do next; whatever became of its job."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from captured_cluster import SLOTS, site
from clusterctl.model.findings import Finding
from clusterctl.model.job_outcome import JobOutcome, OutputLine, Sweep
from clusterctl.model.results import CheckResult, Culprit, RankReport, Search, Verdict, WrongAnswer
from clusterctl.nightly import policy
from clusterctl.remote.login_probe import LoginFailure, LoginReport
from clusterctl.report import exports, page, prometheus, tables
from clusterctl.validation.check_results import CheckResults
from clusterctl.validation.check_runner import refused_by_few
from clusterctl.validation.checks import causes, judging, registry
from clusterctl.validation.checks.base import Judgement
from factory import captured_outcome
from report_records import record

DATA = Path(__file__).parents[2] / "data"
LOGS = sorted(path.stem for path in (DATA / "validation").glob("*.log"))
MESSAGES = sorted((DATA / "launcher").rglob("*.txt"))
ENDINGS = ("exited", "deadline", "lost", "not_started", "stopped")


def finished(judgement: Judgement, name: str = "hello") -> CheckResult:
    results = CheckResults(lambda _event: None)
    results.finish(
        CheckResult(
            check=name,
            verdict=judgement.verdict,
            reason=judgement.reason,
            hosts=judgement.hosts,
            culprits=judgement.culprits,
            next_step=judgement.next_step,
            ranks=judgement.ranks,
            repeat="clusterctl validate hosts.ini --checks hello",
        )
    )
    return results[name]


def is_told(found: CheckResult) -> bool:
    """Whether a result keeps the rule: a PASS names no node, and a bad one names nodes or the next step."""
    if not found.is_bad:
        return not (found.hosts or found.named or found.next_step)
    return bool(found.named) != bool(found.next_step) and set(found.named) <= set(SLOTS)


@pytest.mark.parametrize("name", LOGS)
def test_captured_jobs(name: str) -> None:
    version = "4.1.8" if "4.1.8" in name else "5.0.7"
    outcome = captured_outcome(name)
    for check in ("hello", "allreduce"):
        found = finished(registry.select([check])[0].judge(site(f"none-{version}"), outcome))
        assert is_told(found), (check, found.reason, found.named, found.next_step)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("rc", [0, 1, 139, 255])
@pytest.mark.parametrize("up", ["none", "one", "all"])
def test_endings_of_every_kind(ending: str, rc: int, up: str) -> None:
    ranks = {"none": (), "one": (0,), "all": range(8)}[up]
    lines = tuple(
        OutputLine(
            "stdout", 1.0, f'{{"clusterctl": 1, "event": "started", "rank": {rank}, "host": "node{rank // 2 + 1}"}}'
        )
        for rank in ranks
    )
    for gone in ((), (Sweep("node4", problem="did not answer within 15 s"),)):
        outcome = JobOutcome(ending, 21.0, 20.0, rc=rc, lines=lines, problem="why", sweeps=gone)  # type: ignore[arg-type]
        for check in registry.select(None):
            found = finished(check.judge(site("none-5.0.7"), outcome), check.name)
            assert is_told(found), (check.name, found.reason, found.named, found.next_step)
            assert not gone or ending == "stopped" or found.named == ("node4",), found.reason


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("ending", ["exited", "deadline"])
def test_messages_of_the_launcher(path: Path, ending: str) -> None:
    said = path.read_text(encoding="utf-8").splitlines()[1:]
    lines = tuple(OutputLine("stderr", 1.0, text) for text in said)
    outcome = JobOutcome(ending, 3.0, 3.0, rc=1, lines=lines)  # type: ignore[arg-type]
    found = finished(judging.judge(site("none-5.0.7"), outcome))
    assert found.verdict is Verdict.ERROR
    assert is_told(found), (found.reason, found.named, found.next_step)


def bad(wrong: tuple[WrongAnswer, ...] = (), **changed: object) -> CheckResult:
    given = {"check": "allreduce", "verdict": "FAIL", "reason": "it hung", "repeat": "clusterctl validate hosts.ini"}
    ranks = tuple(RankReport(rank=rank, host=f"node{rank + 1}", state="waiting", problems=wrong) for rank in range(4))
    return CheckResult.model_validate({**given, "ranks": ranks, **changed})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (bad(), "clusterctl validate hosts.ini --search"),
        (bad(ranks=bad().ranks[:2]), "--limit node1"),
        (bad((WrongAnswer(what="sum", expected="1", got="2"),)), "clusterctl validate hosts.ini --search"),
        (bad((WrongAnswer(what="sum", expected="1", got="2"),), ranks=bad().ranks[:2]), "--limit node1"),
        (bad(search=Search(check="allreduce", bound=8, launches=(), words="it did not come again")), "kernel logs"),
        (bad(verdict="ERROR", reason="the run was interrupted", ranks=()), "run it again: clusterctl validate"),
        (bad(verdict="ERROR", reason="no node can take part", ranks=()), "clusterctl doctor"),
    ],
    ids=["hang", "two-nodes", "wrong-everywhere", "wrong-on-both", "searched", "interrupted", "not-run"],
)  # fmt: skip
def test_the_next_step_fits_what_is_known(found: CheckResult, words: str) -> None:
    results = CheckResults(lambda _event: None)
    results.finish(found)
    assert results["allreduce"].next_step
    assert words in results["allreduce"].next_step


def test_a_check_that_did_not_run_for_an_error_says_what_to_do() -> None:
    results = CheckResults(lambda _event: None)
    results.skip_rest(["hello", "allreduce"], "the run was interrupted", Verdict.ERROR)
    assert results["hello"].next_step == "run it again: 'clusterctl validate'"
    (told,) = tables.validation_opening(record(results.all))
    assert told == "Culprit of hello: none, the run was interrupted, next step: run it again: 'clusterctl validate'"
    assert "culprit not known" not in page.document(record(results.all), {})
    assert results["allreduce"].next_step == ""


def test_all_reports_carry_the_names_of_the_record_or_the_next_step() -> None:
    one_way = Culprit(kind="one_way", nodes=("node3", "node5"), words="from node3 to node5: connections time out")
    results = CheckResults(lambda _event: None)
    results.finish(bad(check="hello", hosts=("node2",)))
    results.finish(bad(check="gather", hosts=("node3", "node5"), culprits=(one_way,)))
    results.finish(bad(check="allreduce"))
    whole = record(results.all)
    cases = {case.get("name"): case for case in ET.fromstring(exports.junit(whole)).iter("testcase")}  # noqa: S314
    texts = {name: case.findtext("failure") or "" for name, case in cases.items()}
    assert "culprits: node2\n" in texts["hello"]
    assert "culprits: node3 node5\n" in texts["gather"]
    assert "culprits: not known, next step: have the check launched on groups" in texts["allreduce"]
    series = [line for line in prometheus.document(whole).splitlines() if line.startswith("clusterctl_culprit{")]
    assert [line for line in series if 'check="hello"' in line and 'nodes="node2"' in line]
    assert [line for line in series if 'check="gather"' in line and 'kind="one_way"' in line]
    assert len(series) == 2
    night = {one.check: one for one in policy.proof_of(whole).bad}
    assert (night["hello"].hosts, night["gather"].hosts) == (("node2",), ("node3", "node5"))
    assert night["allreduce"].next_step == results["allreduce"].next_step
    told = "\n".join(tables.validation_opening(whole))
    assert "Culprit of allreduce: not known, next step: have the check launched on groups" in told
    assert "Culprit of hello" not in told


# --- the look at the nodes after a failed job: who is to blame for a login that mpirun needs ---


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


RULE = "-" * 74
LOST = f"""\
{RULE}
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node1-1031@0,0] on node node1
  Remote daemon: [prterun-node1-1031@0,2] on node node3

This is usually due to either a failure of the TCP network
connection to the node.
{RULE}
"""


@pytest.mark.parametrize(("missed", "blamed"), [({"node3"}, ["node2"]), (set(), ["node2", "node3"])])
def test_a_daemon_that_another_node_could_not_start_is_not_its_own_nodes_fault(
    missed: set[str], blamed: list[str]
) -> None:
    """In a tree, node2 starts the daemon of node3, and node2 knows a wrong host key."""
    lines = tuple(OutputLine(at_s=0.5, stream="stderr", text=line) for line in LOST.splitlines())
    outcome = JobOutcome(ending="exited", rc=255, seconds=1.0, ending_s=1.0, lines=lines)
    told = judging.causes_told(site("hello-5.0.7"), outcome)
    assert [one.hosts for one in told] == [("node3",)]
    result = CheckResult(
        check="hello",
        verdict=Verdict.ERROR,
        reason=causes.reason(told),
        hosts=("node3",),
        culprits=causes.culprits(told),
    )
    found = causes.Cause(("node2",), "its known_hosts has another host key for node3", "provision", subject="ssh")
    explained = causes.explained(result, [found], causes.by_logins(told, missed))
    assert [one.nodes[0] for one in explained.culprits] == blamed
    assert ("lost the daemon" in explained.reason) is ("node3" in blamed)
