"""What ranks and launchers may print: no crash, no PASS without the answer of every rank, and a record that loads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import captured_cluster
import factory
import pytest
from clusterctl.jobs.output_lines import NoiseFilter, Prefixer
from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.remote import ssh_failure
from clusterctl.remote.supervised_job import SupervisorAnswers
from clusterctl.suite import ExternalCheck
from clusterctl.validation import check_runner
from clusterctl.validation.checks import judging, mpirun_output, parsers, rank_output, registry
from clusterctl.validation.checks.parsers import UnreadableError
from hostile import JSON, NASTY, TEXT, altered, written
from hypothesis import assume, given, settings
from hypothesis import strategies as st

DATA = factory.DATA
HEALTHY = (("healthy-5.0.7", "allreduce"), ("hello-5.0.7", "hello"))
SITE = captured_cluster.site("none-5.0.7")
WORDS = ("started", "waiting", "hello", "measured", "output", "held_back", "mapped")
MANY = settings.get_current_profile_name() == "drawn"
FIELDS = (
    *("event", "host", "peer", "s", "step", "ok", "figures", "facts", "problems", "seconds", "compared", "wrong"),
    *("part", "parts", "samples", "unit", "better", "quantity", "bytes", "ways", "text", "whole", "libraries"),
    *("library_path", "library_version", "held_s", "held_part", "quota_cores", "files", "changed", "load_cpus"),
)
HOSTS = st.sampled_from(("node1", "node2", "node9"))


@st.composite
def rank_lines(draw: st.DrawFn, ranks: st.SearchStrategy[Any] = st.integers(-1, 9) | JSON) -> str:  # noqa: B008
    """Return a line that resembles the one of a rank."""
    event = {"clusterctl": 1, "rank": draw(ranks), "event": draw(st.sampled_from(WORDS) | JSON), "host": draw(HOSTS)}
    event |= draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
    text = written(event)
    return text[: draw(st.integers(1, len(text)))] if draw(st.booleans()) else text


LINES = rank_lines() | TEXT


def outcome(lines: list[str], **ended: Any) -> JobOutcome:
    given = {"ending": "exited", "seconds": 2.0, "ending_s": 2.0, "rc": 0, **ended}
    return JobOutcome(lines=tuple(OutputLine("stdout", 1.0, line) for line in lines), **given)


def kept(judgement: Any) -> CheckResult:
    """Return the judgement as it is kept in a record and read again."""
    fields = {field.name: getattr(judgement, field.name) for field in dataclasses.fields(judgement)}
    result = CheckResult(check="x", seconds=1.0, **fields)
    return CheckResult.model_validate_json(result.model_dump_json())


def storable(line: str) -> str:
    """Return the line as the supervisor's answers keep it."""
    answers = SupervisorAnswers(None, None)
    answers.take(json.dumps({"event": "line", "stream": "stdout", "at": 1.0, "text": line}))
    return answers.lines[0].text


@pytest.mark.parametrize("name", sorted(registry.registrations()) if MANY else ["hello", "horovod", "nccl", "pairs"])
@given(lines=st.lists(LINES, max_size=6))
def test_no_check_passes_by_lines_that_no_rank_of_it_wrote(name: str, lines: list[str]) -> None:
    (check,) = registry.select([name])
    judgement = check.judge(SITE, outcome([storable(line) for line in lines]))
    assert judgement.verdict is not Verdict.PASS
    assert kept(judgement).verdict is judgement.verdict


@pytest.mark.parametrize(("log", "name"), HEALTHY)
@given(lost=st.integers(0, 7), more=st.lists(st.tuples(st.integers(0, 99), LINES), max_size=4))
def test_a_rank_that_does_not_answer_is_never_passed(
    log: str, name: str, lost: int, more: list[tuple[int, str]]
) -> None:
    given_outcome = factory.captured_outcome(log)
    (check,) = registry.select([name])
    assert check.judge(captured_cluster.site(log), given_outcome).verdict is Verdict.PASS
    lines = [line for line in given_outcome.lines if f'"rank": {lost},' not in line.text]
    assume(len(lines) < len(given_outcome.lines))
    for at, written_line in more:
        text = storable(written_line)
        assume(all(event["rank"] != lost for event in rank_output._events(text)[0]))  # noqa: SLF001 - who answers
        lines.insert(at % len(lines), OutputLine("stdout", 1.0, text))
    judgement = check.judge(captured_cluster.site(log), dataclasses.replace(given_outcome, lines=tuple(lines)))
    assert judgement.verdict is not Verdict.PASS
    assert kept(judgement).verdict is judgement.verdict


ABOUT = '{"clusterctl": 1, "rank": 0, "host": "node1", "event": '
HELD, MEASURED = (
    '"held_back", "held_part": 1, ',
    '"measured", "quantity": "latency", "unit": "s", "better": "lower", "samples": [1.0], ',
)


@pytest.mark.parametrize(
    "line",
    [
        '{"rank": 0, "seconds": ' + "9" * 5000 + "}",
        '{"rank": 0, "event": ["hello"]}',
        '{"rank": 0, "event": {}}',
        ABOUT + HELD + '"held_s": 1' + "0" * 400 + ', "quota_cores": 0}',
        ABOUT + HELD + '"held_s": Infinity, "quota_cores": -Infinity}',
        ABOUT + MEASURED + '"parts": 1000000000000}',
        '{"clusterctl": 1, "event": "started", "rank": 0, "host": "node1\\ud800"}',
        ABOUT + '"waiting", "step": "\\ud800"}',
        "process rank " + "9" * 5000 + " with PID 1 on node node1 exited on signal 9 (Killed).",
    ],
    ids=lambda line: line[:70],
)
def test_lines_that_once_ended_a_validation(line: str) -> None:
    for name in ("allreduce", "hello"):
        (check,) = registry.select([name])
        judgement = check.judge(SITE, outcome([line], rc=1))
        assert kept(judgement).verdict is not Verdict.PASS
    assert check_runner.throttled(outcome([line]).lines, SITE) == ()


def test_a_sign_of_life_from_before_the_job_counts_from_when_it_came() -> None:
    lines = [
        OutputLine("stdout", 1.0, '{"clusterctl": 1, "event": "started", "rank": 0, "host": "node1"}'),
        OutputLine("stdout", 2.0, '{"clusterctl": 1, "event": "waiting", "rank": 0, "host": "node1", "s": -Infinity}'),
    ]
    (report,) = rank_output.read(lines, ("node1",), {}).ranks
    assert report.seen_s == 2.0


def logs(*patterns: str) -> list[str]:
    found = [path for pattern in patterns for path in sorted(DATA.glob(pattern)) if path.name != "README.md"]
    return [path.read_text(encoding="utf-8", errors="replace") for path in found if path.is_file()]


@given(st.lists(LINES, max_size=8))
def test_events_about_nodes_are_read_or_passed_over(lines: list[str]) -> None:
    given_lines = outcome(lines).lines
    check_runner.throttled(given_lines, SITE)
    judging.changed(SITE, given_lines)
    output = rank_output.read(given_lines, SITE.placement, SITE.names)
    rank_output.figures(output.measured)


@given(altered(logs("launcher/*/*", "validation/*5.0.7.log")) | st.lists(TEXT, max_size=10).map("\n".join))
def test_words_of_a_launcher_name_nodes_of_the_inventory_alone(text: str) -> None:
    lines = text.splitlines()
    for cause in mpirun_output.read(lines, SITE.names, "node1"):
        assert set(cause.hosts) <= set(SITE.slots)
    end = mpirun_output.first_end(lines, outcome([], rc=139))
    assert end is None or end.process >= 0
    mpirun_output.with_cause("why", lines)


def test_a_message_of_any_length_is_read_in_moments() -> None:
    rule = "-" * 60
    block = ["not enough space for /dev/shm", *["shared-memory backing Local host:"] * 20_000]
    lines = [rule, "lost communication with a remote daemon " + "Remote daemon : [" * 20_000, *block, rule]
    mpirun_output.read(lines, SITE.names, "node1")


@pytest.mark.parametrize("name", ["nccl_tests", "osu", "imb"])
@given(data=st.data())
def test_output_of_a_benchmark_is_figures_or_one_sentence(name: str, data: st.DataObject) -> None:
    text = data.draw(altered(logs(f"{name}/*")) | TEXT)
    try:
        figures = getattr(parsers, f"parse_{name}")(text)
    except UnreadableError:
        return
    for figure in figures:
        assert type(figure).model_validate_json(figure.model_dump_json()) == figure


@pytest.mark.parametrize("size", ["9" * 5000, "²"], ids=["digits", "superscript"])
def test_a_size_that_is_no_whole_number_is_unreadable(size: str) -> None:
    columns = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    table = f"# {columns}\n{size} 1 float sum -1 1 1 1 0 1 1 1 0\n# Out of bounds values : 0 OK\n"
    with pytest.raises(UnreadableError, match="is not a whole number, in the column size"):
        parsers.parse_nccl_tests(table)


@given(st.lists(JSON.map(written) | TEXT, max_size=5).map("\n".join))
def test_a_users_own_figure_is_a_number_or_one_sentence(text: str) -> None:
    given_check = {"name": "mine", "command": "./x", "unit": "1", "better": "higher"}
    check = ExternalCheck.model_validate({**given_check, "json_path": "$.a[0].b"})
    for one in (check, check.model_copy(update={"json_path": "", "regex": r"(\d\S*)"})):
        try:
            figure = parsers.own_figure(one, text)
        except UnreadableError:
            continue
        assert type(figure).model_validate_json(figure.model_dump_json()) == figure


PIECES = st.binary(max_size=60) | st.sampled_from([b"[1,0]<stdout>:x\n", b"[1,99999]<stderr>: ", b"[n:1] plm:ssh: "])


@given(st.lists(PIECES))
def test_bytes_of_a_job_are_passed_on_whatever_they_are(pieces: list[bytes]) -> None:
    taken: list[bytes] = []

    def take(_stream: str, data: bytes) -> None:
        taken.append(data)

    for reader in (NoiseFilter(take), Prefixer(["node1"], "host", take)):
        for piece in pieces:
            reader("stderr", piece)
        reader.end()


@given(st.integers(0, 255), st.lists(TEXT | st.sampled_from(["sudo: a password is required", "Connection refused"])))
def test_words_of_ssh_become_one_sentence_with_the_host(code: int, lines: list[str]) -> None:
    failure = ssh_failure.classify(Host("node7", "192.0.2.7"), code, "\n".join(lines))
    assert failure.message.startswith("node7 (192.0.2.7 port 22)")


@given(st.lists(JSON.map(written) | TEXT, max_size=6))
def test_words_of_a_supervisor_are_events_or_passed_over(lines: list[str]) -> None:
    answers = SupervisorAnswers(None, None)
    for line in lines:
        answers.take(line)


PARTS = ("stream", "at", "text", "data", "argv", "session", "killed", "left", "host", "reason", "rc", "seconds")
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(("line", "data", "started", "swept", "ending", "ended"))},
    optional=dict.fromkeys(PARTS, JSON),
)


@given(st.lists(EVENTS, max_size=5))
def test_events_with_parts_of_any_form_make_no_success(events: list[dict[str, Any]]) -> None:
    answers = SupervisorAnswers(None, lambda _stream, _data: None)
    for event in events:
        answers.take(written(event))
    if answers.ended is not None and answers.ended.rc is not None:
        assert type(answers.ended.rc) is int
    for line in answers.lines:
        line.text.encode("utf-8")


def test_the_nasty_texts_stay_among_the_examples() -> None:
    assert any("\x1b" in text for text in NASTY)
    assert Path(DATA, "launcher").is_dir()
