from __future__ import annotations

from clusterctl.diagnosis import doctor
from clusterctl.model.findings import Diagnosis, Finding
from doctor_view import NODES, diagnosis


def test_a_record_comes_back_as_it_was() -> None:
    found = diagnosis(Finding("disk", "error", ("node1",), "full", "empty it"))
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found


def test_the_exit_code_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert [doctor.exit_code(diagnosis(*found)) for found in ((), (warning,), (error, warning))] == [0, 10, 10]
    assert doctor.exit_code(diagnosis(error, unreachable=("node1",))) == 4
