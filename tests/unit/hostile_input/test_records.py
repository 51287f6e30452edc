"""Records, snapshots, holds and locks of any content: read as they are, or refused with a sentence; never rendered."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import factory
import pytest
from clusterctl.cli import output
from clusterctl.model.nodeset import folded
from clusterctl.model.results import ValidationRecord, load
from clusterctl.model.run_record import RunRecord
from clusterctl.model.snapshot import Hold, NodeState, Snapshot, SoftwareSet
from clusterctl.provisioning import plan
from clusterctl.report import exports, files, page, prometheus, tables
from clusterctl.state import locks, paths, snapshots
from clusterctl.state import snapshots as kept
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import visible
from hostile import JSON, NASTY, changed, shape, written
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

RECORDS = [json.loads(path.read_bytes()) for path in sorted((factory.DATA / "records").glob("*.json"))]
WATCHED = (
    {"path": "/etc/hosts", "kind": "file", "sha256": "aa", "mode": "0644"},
    {"path": "/a", "kind": "artifact", "files": 3},
)
HOST = {
    "run_id": "r",
    "inputs": {"all": "d"},
    "members": "m",
    "platform": "p",
    "host_keys": ["k"],
    "user": "me",
    "watch": list(WATCHED),
    "traits": {"host name": "node1"},
    "damaged": [{"subject": "/a", "words": "lib (content)"}],
}
SNAPSHOT = {"schema_version": 1, "members": [{"name": "node1"}], "hosts": {"node1": HOST}}
SOFTWARE = {
    "schema_version": 1,
    "run_id": "r",
    "verb": "provision",
    "left": "2026-03-01T02:00:00Z",
    "hosts": {"node1": {"platform": "p", "links": {"/usr/local/openmpi": "/usr/local/openmpi-1"}}},
}
HOLD = {"schema_version": 1, "software": SOFTWARE, "since": "2026-03-01T02:00:00Z", "finished": True}
RUN = json.loads(factory.run_record().model_dump_json())
STATE = NodeState("p", ("k",), "me", WATCHED, "", traits={"host name": "node1"})
ANYTHING = st.binary(max_size=40) | JSON.map(lambda value: written(value).encode())


def reports(record: ValidationRecord) -> str:
    """Write every report of a record, and return its page."""
    ET.fromstring(exports.junit(record).encode("utf-8", "replace"))  # noqa: S314 - our own
    prometheus.document(record)
    for line in exports.json_lines(record):
        json.loads(line)
    tables.validation_rows(record)
    return page.document(record, files.logs(record))


@given(st.data())
def test_a_record_of_a_validation_is_read_and_reported_or_refused(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(RECORDS))
    text = data.draw(changed(record).map(written) | ANYTHING)
    try:
        found = load(text, "the record")
    except ConfigError:
        return
    assert shape(reports(found)) == (2, [])


@pytest.mark.parametrize("nasty", [text for text in NASTY if text and not text.isdigit()], ids=ascii)
def test_texts_of_nodes_are_not_rendered(nasty: str) -> None:
    """The host names itself in HTML and in control characters; neither the page nor a terminal obeys it."""
    record = json.loads(json.dumps(RECORDS[0]).replace("node2", "NODE2"))
    found = load(json.dumps(record), "r")
    first = found.checks[0].model_copy(update={"reason": f"{nasty} node2", "evidence": (nasty,), "hosts": (nasty,)})
    hostile = found.model_copy(update={"checks": (first, *found.checks[1:]), "launch_node": nasty, "hosts": (nasty,)})
    assert shape(reports(hostile)) == (2, [])
    shown = StringIO()
    console = output.console.__wrapped__()
    console.file = shown
    table = Table(box=None)
    table.add_row(Text(nasty), Text(first.reason))
    console.print(table)
    console.print(nasty, markup=False, soft_wrap=True)
    assert not set(shown.getvalue()) & set("\x00\x07\x1b\x9b\u202e\ud800")
    assert not set(visible(nasty)) & set("\x00\x07\r\x1b\x9b\u202e\ud800")


def test_a_log_outside_of_the_runs_folder_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    found = load(json.dumps(RECORDS[0]), "r")
    for log in ("../secret", str(tmp_path / "secret"), "logs/../../secret", "link", "\x00", "."):
        check = found.checks[0].model_copy(update={"log": log})
        assert files.logs(found.model_copy(update={"checks": (check,)}), tmp_path / "run") == {}


@given(changed(RUN).map(written).map(str.encode) | ANYTHING)
def test_the_record_of_a_run_is_read_or_left_out(data: bytes) -> None:
    try:
        found = RunRecord.model_validate_json(data)
    except ValueError:
        return
    assert RunRecord.model_validate_json(found.model_dump_json()) == found


@given(changed(SNAPSHOT).map(written).map(str.encode) | ANYTHING)
def test_a_snapshot_is_compared_or_counts_as_missing(data: bytes) -> None:
    path = paths.snapshot_file("fuzzed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = snapshots.read("fuzzed")
    for host in found.hosts.values():
        differences = plan.known_differences(host, STATE, verified=False)
        plan.folded({"node1": differences})
    assert Snapshot.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_a_snapshot_with_a_number_that_cannot_be_written_again_counts_as_missing(value: str) -> None:
    path = paths.snapshot_file("fuzzed")
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in (
        '{"schema_version":1,"members":[{"name":"node1","port":22}]}',
        '{"members":[{"name":",NaN","port":22}]}',
    ):
        path.write_text(text, encoding="utf-8")
        assert snapshots.read("fuzzed").members
        path.write_text(text.replace("22", value), encoding="utf-8")
        assert not snapshots.read("fuzzed").members


@given(changed(HOLD).map(written).map(str.encode) | ANYTHING)
def test_a_hold_is_read_or_refused_with_a_sentence(data: bytes) -> None:
    path = paths.hold_file("fuzzed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        found = kept.hold("fuzzed")
    except ConfigError:
        return
    assert isinstance(found, Hold)
    found.software.links_for("node9", "p")


@given(changed(SOFTWARE).map(written).map(str.encode) | ANYTHING)
def test_a_set_of_software_is_read_or_left_out(data: bytes) -> None:
    folder = paths.runs_dir("fuzzed") / "20260301T020000Z-provision-1"
    folder.mkdir(parents=True, exist_ok=True)
    paths.software_file(folder).write_bytes(data)
    assert all(isinstance(one, SoftwareSet) for one in kept.sets("fuzzed"))


@given(changed({"pid": 1, "user": "me", "command": "x", "since": "now"}).map(written).map(str.encode) | ANYTHING)
def test_a_lock_of_any_content_names_a_holder(data: bytes) -> None:
    path = paths.private_folder(paths.locks_dir()) / "fuzzed"
    path.write_bytes(data)
    with path.open(encoding="utf-8") as stream:
        assert locks._holder(stream)  # noqa: SLF001 - what a second run is told
    with locks.held(path, "mine"), pytest.raises(locks.HeldError, match="'mine'"), locks.held(path):
        pass


@given(st.lists(st.text(alphabet="node0123456789[]-,.!&@^ *", max_size=12) | st.sampled_from(NASTY), max_size=6))
def test_names_of_any_form_fold(names: list[str]) -> None:
    assert isinstance(folded(names), str)


def test_names_that_make_no_grid_fold_in_time() -> None:
    began = time.process_time()
    for names in ([f"a{n}b{n * 7}c{n * 13}" for n in range(20000)], ["1a" * 50000 + str(n) for n in range(300)]):
        assert folded(names) == ",".join(names)
    assert folded([f"r{row}n{node}" for row in range(16) for node in range(16)]) == "r[0-15]n[0-15]"
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    "odd",
    [
        {"first": [10**6]},
        {"first": [10**30]},
        {"first": [0, 1]},
        {"forward": [1.0, 2.0], "backward": [1.0, 2.0]},
        {"forward": [1.0]},
        {"nodes": []},
        {"size_bytes": 10**4000},
    ],
)
def test_a_matrix_whose_links_are_not_whole_is_refused(odd: dict[str, object]) -> None:
    made = json.loads(json.dumps(next(one for one in RECORDS for check in one["checks"] if check.get("matrices"))))
    matrix = next(check["matrices"][0] for check in made["checks"] if check.get("matrices"))
    matrix.update({"first": [0], "second": [1], "value": [1.0], "spread": [], "forward": [], "backward": []} | odd)
    with pytest.raises(ConfigError, match="damaged"):
        load(json.dumps(made), "r")


@pytest.mark.parametrize("nodes", [[], ["node1"]])
def test_a_link_of_less_than_two_nodes_and_a_matrix_of_nothing_are_shown(nodes: list[str]) -> None:
    made = json.loads(json.dumps(next(one for one in RECORDS for check in one["checks"] if check.get("matrices"))))
    made["hosts"] = ["node1", *made["hosts"]]
    check = next(check for check in made["checks"] if check.get("matrices"))
    matrix = check["matrices"][0]
    matrix.update({"value": [0.0] * (len(matrix["value"]) - 1) + [1.0], "better": "higher"})
    about = {"quantity": matrix["quantity"], "size_bytes": matrix["size_bytes"], "words": "w"}
    check |= {"verdict": "FAIL", "matrices": [matrix]}
    check["culprits"] = [{"kind": "pair", "nodes": nodes, **about}, {"kind": "one_way", "nodes": nodes, **about}]
    assert page.document(load(json.dumps(made), "r")).startswith("<!doctype html>")


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="started"):
        load(json.dumps({**RECORDS[0], "started": "0001-01-01T00:00:00"}), "r")


@pytest.fixture(autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
