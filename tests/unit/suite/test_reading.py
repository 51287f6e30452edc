"""A user's suite file: every mistake is one sentence with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import pytest
from clusterctl import suite
from clusterctl.support import content
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import registry
from clusterctl.validation.checks.pairs import PairsOptions
from pydantic import ValidationError

R = TypeVar("R", bound=suite.CheckOptions)
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = content.root() / "inventories" / "example" / "validation.yml"


CHECKS = registry.catalogue().checks


def options_of(where: suite.Suite, check: str, kind: type[R]) -> R:
    found = where.checks[check]
    assert isinstance(found, kind)
    return found


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        registry.parse(text, "validation.yml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_extending_changes_only_what_is_given() -> None:
    own = registry.parse(
        "extends: nightly\nchecks:\n  pairs: {bandwidth_bytes: 64 KiB, budget_s: 200 ms}\n  training: false\n"
        "  hello: {deadline_s: 2 min}\n",
        "f",
    )
    nightly = registry.builtin("nightly")
    assert own.name == "nightly"
    assert set(own.checks) == set(nightly.checks) - {"training"}
    before = options_of(nightly, "pairs", PairsOptions)
    pairs = options_of(own, "pairs", PairsOptions)
    assert (pairs.bandwidth_bytes, pairs.budget_s) == ((65536,), 0.2)
    assert (pairs.latency_bytes, pairs.max_rounds) == (before.latency_bytes, before.max_rounds)
    assert next(iter(registry.build(own))).deadline_s == 120


def test_checks_are_put_in_their_order() -> None:
    own = registry.parse("checks:\n  training:\n  hello: true\n  node_speed: {budget_s: 1}\n", "f")
    assert (own.name, list(own.checks)) == ("own", ["hello", "node_speed", "training"])


REFERENCE = "references:\n- check: collectives\n  quantity: bus_bandwidth\n"
LATENCY = "{check: pairs, quantity: latency, value: 1, upper: 0.1, "
EXTERNAL = "external:\n- name: disk\n  command: ./disk.sh\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; begin with 'extends: nightly'"),
        ("# only words\n", "is empty"),
        ("[1]", "has to be keys with values"),
        ("42", "and this is a number"),
        ("extend: nightly", "line 1: extend: unknown key 'extend'; did you mean 'extends'?"),
        ("extends: nigtly", "unknown suite 'nigtly'; did you mean 'nightly'?"),
        ("extends: [smoke]", "unknown suite"),
        ("name: nightly\nextends: full", "line 1: name: 'nightly' is the name of a built-in suite"),
        ("name: a b", "must consist of small letters"),
        ("name: ours", "the suite is empty; begin with 'extends: nightly'"),
        ("extends: smoke\nchecks: [pairs]", "line 2: checks: 'checks' has to be keys with values"),
        ("checks:\n  pears: {}", "line 2: checks.pears: unknown check 'pears'; did you mean 'pairs'?"),
        ("checks:\n  skew: true", "'skew' always runs"),
        ("checks:\n  pairs: 3", "line 2: checks.pairs: 'pairs' (or true, or false) has to be keys with values"),
        ("checks:\n  pairs:\n    budgets_s: 3", "line 3: checks.pairs.budgets_s: unknown key 'budgets_s'; did you"),
        ("checks:\n  hello:\n    budget_s: 3", "unknown key 'budget_s'; the keys are deadline_s."),
        ("checks:\n  pairs:\n    budget_s: abc", "line 3: checks.pairs.budget_s: 'abc' is not a number."),
        ("checks:\n  pairs:\n    budget_s: 3 MiB", "'3 MiB' is not a time such as 30, 200 ms or 2 min."),
        ("checks:\n  pairs:\n    budget_s: 0", "0 is not above 0"),
        ("checks:\n  pairs:\n    budget_s: .inf", "inf is not a finite number"),
        ("checks:\n  pairs:\n    budget_s: true", "True is not a number"),
        ("checks:\n  pairs:\n    budget_s:", "None is not a number"),
        ("checks:\n  pairs:\n    confidence: 2", "2 is not between 50 % and 99.99 %"),
        ("checks:\n  pairs:\n    max_rounds: 1.5", "'1.5' is not a whole number"),
        ("checks:\n  pairs:\n    bandwidth_bytes: [64 KiB, 1 Mb]", "'1 Mb' is not a size"),
        ("checks:\n  pairs:\n    bandwidth_bytes: 64M", "'64M' is not a size; write '64 MiB'"),
        ("checks:\n  pairs:\n    bandwidth_bytes: [1 GiB]", "not at most 64 MiB"),
        ("checks:\n  pairs:\n    bandwidth_bytes: [8, 8 B]", "a value is given twice"),
        ("checks:\n  pairs:\n    bandwidth_bytes: []", "the list is empty"),
        ("checks:\n  collectives:\n    operations: [alreduce]", "'alreduce' is not known; did you mean 'allreduce'?"),
        ("checks: {pairs: {}, pairs: {}}", "line 1: 'pairs' stands there twice"),
        (f"{REFERENCE}  value: 1\n", "lower and upper are missing"),
        (f"{REFERENCE}  value: 1 GB/s\n  lower: 10 %\n  upper: -10 %\n", "lower (0.1) is above upper (-0.1)"),
        (f"{REFERENCE}  value: 1 GB/s\n  lower: 0.9\n  upper: 1.1\n", "at most 0, upper at least 0"),
        (f"{REFERENCE}  value: 1 GB/s\n  lower: -120 %\n", "give more than -100 %"),
        (f"{REFERENCE}  value: 1 GB/s\n  lower: -10 GB/s\n", "is not a fraction"),
        (f"{REFERENCE}  value: 3 ms\n  lower: -10 %\n", "bus_bandwidth of 'collectives' is in B/s, not in s."),
        (f"{REFERENCE}  value: 3 Gb/s\n  lower: -10 %\n", "'Gb/s' is not a unit"),
        (f"{REFERENCE}  value: 3 GB/s\n  unit: s\n  lower: -10 %\n", "the value is in GB/s, and the unit is s"),
        (f"{REFERENCE}  value: -3 GB/s\n  lower: -10 %\n", "is not above 0"),
        (f"{REFERENCE}  lower: -10 %\n", "line 2: references.value: 'value' is missing."),
        (f"{REFERENCE}  value: 3 GB/s\n  lower: -10 %\n  sizes: 8\n", "unknown key 'sizes'; did you mean 'size'?"),
        ("references: {}", "'references' has to be a list"),
        ("references: [pairs]", "a reference has to be keys with values"),
        ("references:\n- {check: pairs, quantity: latncy, value: 1, upper: 0.1}", "did you mean 'latency'?"),
        ("references:\n- {check: pears, quantity: latency, value: 1, upper: 0.1}", "did you mean 'pairs'?"),
        ("references:\n- {check: hello, quantity: latency, value: 1, upper: 0.1}", "'hello' does not measure anything"),
        (
            f"references:\n- {LATENCY}size: 8}}\n- {LATENCY}size: 8 B}}",
            "line 3: references: a reference for this latency of 'pairs' is given above already",
        ),
        (f"{EXTERNAL}- name: disk\n  command: ./b\n", "line 4: external.name: two checks are named 'disk'"),
        (f"{EXTERNAL}  where: mpx\n", "'mpx' is not known; did you mean 'mpi'?"),
        (f"{EXTERNAL}  parser: nccl_tests\n", "did you mean 'nccl-tests'?"),
        (f"{EXTERNAL}  regex: '(a)'\n  json_path: b\n", "regex and json_path are given; give one of them"),
        (f"{EXTERNAL}  regex: '(a'\n", "the regular expression is wrong"),
        (f"{EXTERNAL}  regex: 'a'\n", "name the one with the figure"),
        (f"{EXTERNAL}  json_path: 'a b'\n", "is not a path such as"),
        (f"{EXTERNAL}  unit: MB\n", "'MB' is not a unit"),
        (
            f"{EXTERNAL}  regex: '(a)'\n  unit: MB/s\n  reference: {{value: 3 ms, lower: -0.1}}\n",
            "is in s, and the fig",
        ),
        (
            f"{EXTERNAL}  regex: '(a)'\n  reference: {{value: 3, lowr: -0.1}}\n",
            "unknown key 'lowr'; did you mean 'lower'?",
        ),
        (f"{EXTERNAL}  reference: {{value: 3, lower: -0.1}}\n", "a reference needs a figure"),
        (f"{EXTERNAL}  ranks_per_node: 2\n", "ranks_per_node is for 'where: mpi'"),
        ("external:\n- name: hello\n  command: ./a\n", "one of clusterctl's own checks"),
        ("external:\n- name: A-b\n  command: ./a\n", "must consist of small letters"),
        ("external:\n- name: a\n  command: ''\n", "the command is empty"),
        ('external:\n- name: a\n  command: "echo \'a"\n', "cannot be split into words: no closing quotation"),
        ("external:\n- name: a\n  command: [sleep, 5]\n", "5 is not text; put it in quotes"),
        (f"{EXTERNAL}checks: {{disk: true}}\n", "is under 'external' and runs already; take it out of 'checks'"),
        ("extends: smoke\noutliers: {flor: 1}", "unknown key 'flor'; did you mean 'floor'?"),
        ("extends: smoke\noutliers: {floor: 300 %}", "3 is not between 0 and 1"),
        ("extends: smoke\nhistory: {runs: 3}", "at_least (5) is above runs (3)"),
        ("extends: smoke\nhistory: {mads: 0}", "mads 0 is not above 0"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", value)[:60] if len(value) < 400 else "long",
)
def test_what_is_wrong_is_told_in_one_sentence(text: str, words: str) -> None:
    assert words in refused(text)


def test_values_are_turned_into_the_unit_of_what_they_are_about() -> None:
    own = registry.parse(
        "extends: smoke\nreferences:\n- {check: pairs, quantity: latency, value: 0.02 ms, upper: 10 %, size: 8}\n"
        "- {check: pairs, quantity: bandwidth, value: 1.1e9, lower: -10 %}\n",
        "f",
    )
    latency, bandwidth = own.references
    assert (latency.value, latency.unit, latency.upper) == (pytest.approx(20.0), "us", 0.1)
    assert (bandwidth.value, bandwidth.unit, bandwidth.lower) == (1.1e9, "B/s", -0.1)


def test_a_check_of_the_users_own() -> None:
    own = registry.parse(
        "external:\n- name: disk\n  command: dd if=/dev/zero of='/tmp/a b' bs=1M\n  where: each_node\n"
        "  regex: '([\\d.]+) MB/s'\n  unit: MB/s\n  better: higher\n  reference: {value: 1.2 GB/s, lower: -10 %}\n",
        "f",
    )
    (disk,) = own.external
    assert disk.command == ("dd", "if=/dev/zero", "of=/tmp/a b", "bs=1M")
    assert (disk.unit, disk.scale, disk.where) == ("B/s", 1e6, "each_node")
    (entry,) = own.every_reference
    assert (entry.check, entry.quantity, entry.value, entry.unit) == ("disk", "disk", 1.2e9, "B/s")
    assert suite.ExternalCheck.model_validate_json(disk.model_dump_json()) == disk
    assert registry.parse(f"{EXTERNAL}  on: mpi\n", "f").external[0].where == "mpi"  # the older name of the key


@pytest.mark.parametrize(
    ("keys", "scale", "value"),
    [
        ("unit: MB/s\n  reference: {value: 200, lower: -0.1}", 1e6, 200e6),
        ("unit: MB/s\n  reference: {value: 0.2 GB/s, lower: -0.1}", 1e6, 200e6),
        ("unit: MB/s\n  scale: 8\n  reference: {value: 200, lower: -0.1}", 8e6, 200e6),
        ("reference: {value: 200, lower: -0.1}", 1, 200),
        ("scale: 3\n  reference: {value: 200, lower: -0.1}", 3, 200),
    ],
    ids=["same", "own", "scaled", "plain", "plain-scaled"],
)
def test_a_reference_beside_a_check_is_in_the_checks_unit(keys: str, scale: float, value: float) -> None:
    own = registry.parse(f"{EXTERNAL}  regex: '(a)'\n  {keys}\n", "f")
    assert [one.scale for one in own.external] == [scale]
    assert [one.value for one in own.every_reference] == [value]
    again = tuple(suite.ExternalCheck.model_validate_json(one.model_dump_json()) for one in own.external)
    assert again == own.external


def test_a_reference_without_unit_takes_the_figures() -> None:
    own = registry.parse(f"{EXTERNAL}  regex: '(a)'\n  unit: ms\n  reference: {{value: 3 ms, upper: 10 %}}\n", "f")
    assert [(one.value, one.unit) for one in own.every_reference] == [(pytest.approx(0.003), "s")]


def test_the_example_shows_every_key() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    shown = registry.load(EXAMPLE)
    assert shown.external
    assert shown.references
    models = [suite.HistoryOptions, suite.OutlierOptions, suite.ExternalCheck, suite.ReferenceEntry]
    keys = {key for model in (*models, *(check.options for check in CHECKS.values())) for key in model.model_fields}
    keys |= {"name", "extends", "checks", "references", "external", "outliers", "history"}
    missing = {key for key in keys if re.search(rf"^[\s#{{-]*.*\b{key}:", text, re.MULTILINE) is None}
    assert missing == set()


def test_the_examples_of_the_docs_are_taken_as_they_stand() -> None:
    text = (ROOT / "docs" / "reference" / "suites.md").read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        own = registry.parse(example, "docs/reference/suites.md")
        assert (own.name, len(own.references), len(own.external)) == ("nightly", 1, 1)
        assert "training" not in own.checks


def test_a_record_of_a_suite_is_strict() -> None:
    with pytest.raises(ValidationError):
        suite.Suite.model_validate({"name": "a", "checks": {}, "what": 1})
