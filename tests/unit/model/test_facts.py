from __future__ import annotations

import sys
from typing import Any

from clusterctl.model.facts import NodeFacts
from clusterctl.remote import facts, python


def test_a_newer_probes_keys_are_passed_over() -> None:
    record = _record_of_this_machine()
    newer = {**record, "schema_version": 2, "quantum": [], "user": {**record["user"], "shoe_size": 43}}
    assert NodeFacts.model_validate(newer).hostname == record["hostname"]


def test_the_first_driver_branch_of_each_cuda_is_told_by_number() -> None:
    cuda = NodeFacts.model_validate(_record_of_this_machine()).cuda
    assert cuda.first_branches[13] == 580


def test_a_record_survives_being_written_and_read() -> None:
    known = NodeFacts.model_validate(_record_of_this_machine())
    assert NodeFacts.model_validate_json(known.model_dump_json()) == known


def _record_of_this_machine() -> dict[str, Any]:
    program = python.program(facts.NODE_PROBE)
    reply = python.ask(program.argv(sys.executable), program.data + b"{}", 30, {"schema_version"})
    assert reply.answer is not None, reply.problem
    return reply.answer
