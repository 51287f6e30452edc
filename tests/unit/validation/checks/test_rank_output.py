"""Reading what ranks print: joined lines, invalid answers and figures."""

from __future__ import annotations

import pytest
from clusterctl.model.job_outcome import OutputLine
from clusterctl.validation.checks import causes, rank_output


def test_lines_that_mpirun_glued_together_are_taken_apart() -> None:
    lines = [
        OutputLine(
            "stdout", 0.1, '[1,0]<stdout>:{"clusterctl": 1, "event": "started", "rank": 0, "host": "a"}{"rank": 1}'
        ),
        OutputLine("stderr", 0.2, 'warning: {"rank": cut'),
        OutputLine("stdout", 0.3, '{"rank": 0, "size": 2, "host": "a.example", "library_path": "/x"}'),
    ]
    output = rank_output.read(lines, ("node1", "node2", "node2"), {"a": "node1", "a.example": "node1"})
    assert [(report.state, report.host) for report in output.ranks] == [
        ("answered", "node1"),
        ("answered", "node2"),
        ("absent", "node2"),
    ]
    assert output.other == ("[1,0]<stdout>:", 'warning: {"rank": cut')


@pytest.mark.parametrize(
    "line",
    [
        '{"rank": 0, "figures": {"loss": "x"}}',
        '{"rank": 0, "figures": [1]}',
        '{"rank": 0, "facts": null}',
        '{"rank": 0, "problems": [{"what": "sum"}]}',
        '{"rank": 0, "seconds": null}',
        '{"rank": 0, "seconds": NaN}',
        '{"rank": 0, "compared": 1e999}',
        '{"rank": true}',
        '{"rank": ' + "[" * 100_000,
    ],
    ids=lambda line: line[:40],
)
def test_what_is_no_answer_is_none(line: str) -> None:
    output = rank_output.read([OutputLine("stdout", 0.1, line)], ("node1",), {})
    assert [(report.state, report.ok) for report in output.ranks] == [("absent", False)]


def test_a_figure_that_is_no_number_is_a_wrong_answer_and_the_record_loads_again() -> None:
    line = OutputLine("stdout", 0.1, '{"rank": 0, "ok": true, "host": "node1", "figures": {"loss": NaN, "step_s": 2}}')
    (report,) = rank_output.read([line], ("node1",), {}).ranks
    assert (report.ok, report.figures) == (False, {"step_s": 2.0})
    assert causes.wrong_words([report]) == "rank 0 on node1: loss: expected a finite number, got nan"
    assert type(report).model_validate_json(report.model_dump_json()) == report


def test_measurements_and_ranks_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_output, "_MOST_PARTS", 5)
    monkeypatch.setattr(rank_output, "_MOST_STRANGERS", 5)
    figure = '{"rank": 0, "event": "measured", "host": "node1", "quantity": "q%d", "unit": "s", "better": "lower"'
    figure += ', "samples": [1]}'
    lines = [OutputLine("stdout", 0.1, figure % number) for number in range(20)]
    lines += [OutputLine("stdout", 0.1, f'{{"rank": {number}, "event": "started"}}') for number in range(20)]
    lines.append(OutputLine("stdout", 0.1, '{"rank": -5, "event": "started"}'))
    output = rank_output.read(lines, ("node1",), {})
    assert len(output.measured) == 5
    assert [report.rank for report in output.ranks] == list(range(7))
