"""The page without a browser: nothing breaks out, nothing points outside, numbers survive their packing."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusterctl.model.job_outcome import Stack
from clusterctl.model.results import CheckResult, Culprit, Figure, PairMatrix, ValidationRecord, Verdict
from clusterctl.report import page
from clusterctl.report.page import matrices, pictures, topology
from report_records import FULL, HUNG, PAIRS, record

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
import records

EVIL = '</script><script>alert("x")</script><img src=http://x.invalid/y onerror=alert(1)> & "q" \u2028 </pre></title>'
VOID = {"meta", "link", "input", "br", "img"}


class Reader(html.parser.HTMLParser):
    """Elements, attributes and the text of scripts, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.words += data


def evil_record() -> ValidationRecord:
    hosts = (EVIL, "node2", "node3")
    matrix = PairMatrix(
        quantity=EVIL,
        size_bytes=1,
        unit="us",
        better="lower",
        nodes=hosts,
        first=(0, 0, 1),
        second=(1, 2, 2),
        value=(1.0, 2.0, 3.0),
    )
    check = CheckResult(
        check=f"own {EVIL}",
        verdict=Verdict.FAIL,
        reason=EVIL,
        hosts=(EVIL,),
        command=(EVIL,),
        repeat=EVIL,
        left_out={EVIL: EVIL},
        matrices=(matrix,),
        figures=tuple(Figure(quantity=EVIL, nodes=(host,), value=1.0, unit="1") for host in hosts),
        culprits=(Culprit(kind="node", nodes=(EVIL,), words=EVIL), Culprit(kind="pair", nodes=hosts[:2], words=EVIL)),
        stacks=(Stack(host=EVIL, pid=1, tool="gdb", text=EVIL),),
        evidence=(EVIL,),
        left_behind=(EVIL,),
    )
    return record((check,)).model_copy(
        update={
            "hosts": hosts,
            "slots": {EVIL: 1},
            "fabric": {EVIL: EVIL},
            "versions": {EVIL: EVIL},
            "notes": (EVIL,),
            "suite": EVIL,
        }
    )


def policy_of(reader: Reader) -> str:
    wanted = [attrs for tag, attrs in reader.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    return str(wanted[0]["content"])


def data_of(one: ValidationRecord) -> dict[str, Any]:
    reader = Reader(page.document(one))
    at = [attrs.get("id") for tag, attrs in reader.elements if tag == "script"].index("data")
    data: dict[str, Any] = json.loads(reader.scripts[at])
    return data


def test_no_name_and_no_log_breaks_out() -> None:
    one = evil_record()
    plain, evil = Reader(page.document(one)), Reader(page.document(one, {one.checks[0].check: EVIL * 3}))
    assert evil.open == []
    assert [tag for tag, _ in evil.elements].count("script") == 2  # the data and our own
    assert "img" not in {tag for tag, _ in evil.elements}
    assert not [attrs for _, attrs in evil.elements if any(name.startswith("on") for name in attrs)]
    assert evil.words.count(EVIL) >= plain.words.count(EVIL) + 3  # it is there, as text
    assert data_of(one)["nodes"]["hosts"][0] == EVIL


@pytest.mark.parametrize("one", [pytest.param(FULL, id="full"), pytest.param(evil_record(), id="evil")])
def test_nothing_points_outside_and_only_our_scripts_may_run(one: ValidationRecord) -> None:
    reader = Reader(page.document(one))
    for _, attrs in reader.elements:
        for name in ("src", "href", "action", "data", "poster"):
            assert str(attrs.get(name, "#"))[:1] == "#" or attrs[name] == "data:,"
    policy = policy_of(reader)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    for (_, attrs), script in zip([e for e in reader.elements if e[0] == "script"], reader.scripts, strict=True):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert attrs.get("type") == "application/json" or f"'sha256-{digest}'" in policy


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(record(()), id="nothing"),
        pytest.param(record((HUNG, PAIRS)).model_copy(update={"hosts": ()}), id="no hosts"),
        pytest.param(
            record(
                (
                    PAIRS.model_copy(
                        update={"figures": (Figure(quantity="q", nodes=("node1",), value=math.nan, unit="1"),)}
                    ),
                )
            ),
            id="not a number",
        ),
    ],
)
def test_a_meagre_record_has_a_page_too(one: ValidationRecord) -> None:
    assert Reader(page.document(one)).open == []
    assert data_of(one)["matrices"] == []


def test_the_same_record_is_the_same_page() -> None:
    assert page.document(FULL, {"pairs": "log"}) == page.document(FULL, {"pairs": "log"})


def unpacked(matrix: dict[str, Any], kind: str = "values") -> np.ndarray:
    return np.frombuffer(base64.b64decode(matrix[kind]), {"values": "<u2", "worst": "<u2", "spreads": "u1"}[kind])


def test_links_survive_their_packing() -> None:
    made = records.record(records.Shape(9, slow=((4, 0.01),), bandwidth_bytes=(8 << 20,), latency_bytes=()))
    matrix, packed = made.checks[-2].matrices[0], matrices.of(made)[0]
    codes = unpacked(packed)
    low, high = packed["low"], packed["high"]
    back = low * np.exp((codes - 1.0) / 65534 * np.log(high / low))
    assert back == pytest.approx(np.array(matrix.value), rel=1e-4)  # pairs stand in the triangle's order there
    shares = 10 ** ((unpacked(packed, "spreads") - 255.0) / 254 * 5)
    assert shares == pytest.approx(np.full(36, 0.01), rel=0.05)
    assert packed["order"][0] == 4
    assert packed["worst_links"][0][0] == "node5 ↔ node[1-4,6-9]"


def test_what_was_not_measured_is_no_number() -> None:
    made = records.record(records.Shape(8, rounds=2, bandwidth_bytes=(1 << 20,), latency_bytes=()))
    packed = matrices.of(made)[0]
    assert (unpacked(packed) > 0).sum() == len(made.checks[-2].matrices[0].value)
    assert not packed["complete"]


def test_a_bad_link_puts_its_ends_first() -> None:
    made = records.record(records.Shape(40, slow=((30, 0.2),), links=((3, 17, 0.4),)))
    assert set(matrices.of(made)[-1]["order"][:3]) == {30, 3, 17}
    assert matrices.of(made)[-1]["worst_links"][1][0] == "node04 ↔ node18"


def test_thousands_of_nodes_are_blocks_that_show_their_worst() -> None:
    made = records.record(
        records.Shape(1000, rounds=6, links=((10, 12, 0.1),), bandwidth_bytes=(1 << 20,), latency_bytes=())
    )
    packed = matrices.of(made)[0]
    assert packed["block"] == 4
    assert packed["nodes"][2] == "node[0009-0012]"
    cell = 2 * len(packed["nodes"]) - 1 + 1  # row 2, column 3 of a triangle with its diagonal
    assert unpacked(packed, "worst").reshape(-1, 2)[cell].tolist() == [10, 12]
    assert unpacked(packed)[cell] == 1  # the least of all
    assert packed["order"][0] in {2, 3}
    assert packed["worst_links"][0][0] == "node0011 ↔ node0013"


@pytest.mark.parametrize(("nodes", "most"), [(6, 300_000), (64, 500_000), (512, 4_000_000)])
def test_a_page_is_small(nodes: int, most: int) -> None:
    made = records.record(records.Shape(nodes, slow=((nodes // 3, 0.1),)))
    assert sum(len(matrix.value) for matrix in made.checks[-2].matrices) == 7 * nodes * (nodes - 1) // 2
    assert len(page.document(made).encode()) < most


def test_the_drawing_marks_what_is_named_and_colours_what_was_measured() -> None:
    made = records.record(records.Shape(12, slow=((5, 0.1),), links=((1, 8, 0.4),)))
    drawing = topology.drawing(made)
    assert drawing is not None
    assert {node.name: node.state for node in drawing.nodes if node.state != "good"} == {
        "node06": "bad",
        "node02": "end",
        "node09": "end",
    }
    assert len(drawing.links) == 12 * 11 // 2
    assert sum(link.bad and link.pace == 0 for link in drawing.links) == 11
    assert [link.pace for link in drawing.links if link.bad and link.pace > 0] == [1]
    assert {link.pace for link in drawing.links if not link.bad} == {4}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(records.record(records.Shape(6)), id="nothing is named"),
        pytest.param(records.record(records.Shape(40, slow=((5, 0.1),))), id="lines would hide each other"),
        pytest.param(record((HUNG,)), id="a node without measured links"),
    ],
)
def test_a_drawing_that_shows_nothing_is_left_out(made: ValidationRecord) -> None:
    assert topology.drawing(made) is None
    assert "topology" not in {attrs.get("class") for _, attrs in Reader(page.document(made)).elements}


def test_the_rows_of_the_matrix_begin_with_what_a_check_names() -> None:
    made = records.record(records.Shape(512, slow=((16, 0.1), (300, 0.5)), links=((100, 411, 0.4),)))
    packed = matrices.of(made)[-1]
    assert packed["named"] == {"rows": [16, 100, 300, 411], "nodes": [16, 300], "pairs": [[100, 411]]}
    assert set(packed["order"][:4]) == {16, 100, 300, 411}
    assert [one[0] for one in packed["worst_links"] if one[3]][1:] == [
        "node101 ↔ node412",
        "node301 ↔ node[001-300,302-512]",
    ]


def test_a_row_of_a_thousand_nodes_names_its_nodes_as_the_inventory_counts_them() -> None:
    made = records.record(
        records.Shape(1000, rounds=6, slow=((600, 0.1),), bandwidth_bytes=(1 << 20,), latency_bytes=())
    )
    hosts = ("unused", *made.hosts)  # one that took no part stands before the others
    packed = matrices.of(made.model_copy(update={"hosts": hosts}))[0]
    assert packed["named"] == {"rows": [150], "nodes": [601], "pairs": []}
    rows = unpacked(packed, "worst").reshape(-1, 2)
    assert (rows[unpacked(packed) > 0] > 0).all()


def test_the_first_picture_is_of_the_worst_culprit() -> None:
    made = records.record(records.Shape(6, slow=((2, 0.1),)))
    assert matrices.of(made)[matrices.first(made)]["title"] == "bandwidth 8 MiB"
    assert matrices.of(made)[matrices.first(records.record(records.Shape(6)))]["title"] == "bandwidth 64 MiB"


def test_trends_are_red_only_where_this_run_names_them() -> None:
    made = records.record(records.Shape(4, slow=((2, 0.1),)))
    shown, _ = pictures.trends(made)
    assert {one["title"].partition(" on ")[2] for one in shown if one["named"]} - {""} == {"node3"}
    assert {one["title"] for one in shown if one["title"].endswith("on node3") and not one["named"]} == {
        "memory bandwidth on node3"  # the check of this figure passed
    }


def test_trends_that_changed_come_first_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = records.record(records.Shape(4, slow=((2, 0.1),)))
    monkeypatch.setattr(pictures, "_TRENDS", 3)
    shown, left = pictures.trends(made)
    assert all(one["changed"] for one in shown)
    assert left == len(made.trends) - 3
