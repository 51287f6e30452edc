from __future__ import annotations

from clusterctl.model.findings import Finding
from clusterctl.report import doctor_table
from doctor_view import NODES, diagnosis


def test_the_ending_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert doctor_table.rows(diagnosis(warning))[0].nodes == "node[1-3]"
    assert doctor_table.closing(diagnosis()) == ("4 hosts: nothing wrong was found (0.0 s).",)
    assert doctor_table.closing(diagnosis(error, warning, warning, unreachable=("node4",), notes=("a.",))) == (
        "Note: a.",
        "4 hosts, 3 of them within reach: 1 error and 2 warnings (0.0 s).",
    )


def test_the_source_of_a_limit_stands_under_the_cause_and_in_the_record() -> None:
    found = diagnosis(Finding("links", "warning", ("node1",), "errors grew", "look", source="IEEE 802.3"))
    assert doctor_table.rows(found)[0].cause == "errors grew\nsource: IEEE 802.3"
    assert found.model_dump(mode="json")["findings"][0]["source"] == "IEEE 802.3"
