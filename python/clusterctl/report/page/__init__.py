"""The HTML page of a validation: one file that opens from disk and needs no network.

Its script is made of the ``.js`` files beside this module. The content security policy of the page names it by its
sha256, so that a script in a host name or a log cannot run. Jinja2's autoescape treats every text; the data of the
pictures is JSON with ``<``, ``>`` and ``&`` escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from clusterctl.analysis import speed_verdict
from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.report import exports, figure_words, what_to_do
from clusterctl.report.page import matrices, pictures, topology
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from jinja2 import Template

    from clusterctl.model.results import CheckResult, Comparison, Figure, RankReport, ValidationRecord

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_SCRIPTS = ("tools.js", "links.js", "charts.js", "page.js")
_MINUTE = 60
_NAMED = 3  # checks that the headline names for one reason
_REASONS = 2  # of skipped checks in the headline


def document(record: ValidationRecord, logs: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        record: of the validation.
        logs: the raw output of the checks by name, cut to a size that a page can hold.
    """
    curves, (trends, trends_left) = pictures.sweeps(record), pictures.trends(record)
    links = matrices.of(record)
    script = _script()
    data = {
        "matrices": links,
        "first": matrices.first(record),
        "sweeps": curves,
        "trends": trends,
        "nodes": pictures.nodes(record),
    }
    todo = what_to_do.of(record)
    return _template().render(
        record=record,
        policy=_POLICY.format(scripts=_digest(script)),
        style=_own("page.css"),
        script=script,
        data=_embedded(data),
        verdict=record.verdict.value,
        headline=_headline(record, len(todo)),
        took=_duration((record.finished - record.started).total_seconds()),
        where=nodeset.folded(record.hosts),
        networks=_networks(record),
        todo=todo,
        failed=[one for check in record.checks for one in check.comparisons if one.verdict is Verdict.FAIL],
        searches=[check.search for check in record.checks if check.search],
        drawing=topology.drawing(record),
        checks=[shown(check, (logs or {}).get(check.check, "")) for check in record.checks],
        counts=_counts(record),
        fineness=[
            (check.check, words) for check in record.checks if (words := speed_verdict.fineness_words(check.fineness))
        ],
        has={"matrices": bool(links), "sweeps": bool(curves), "trends": bool(trends)},
        blocks=max((matrix.get("block", 0) for matrix in links), default=0),
        trends_left=trends_left,
        left_behind=list(dict.fromkeys(words for check in record.checks for words in check.left_behind)),
    )


@cache
def _template() -> Template:
    import jinja2  # noqa: PLC0415 - takes time to import

    surroundings = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    surroundings.filters |= {
        "figure": figure_words.figure,
        "size": figure_words.size,
        "about": figure_words.about,
        "night": _night,
        "folded": nodeset.folded,
    }
    return surroundings.from_string(_own("page.html.j2"))


def _own(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return the parts of the page's script in one scope of their own."""
    return '"use strict";\n(function () {\n' + "\n".join(_own(name) for name in _SCRIPTS) + "})();"


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end its HTML element; NaN becomes null."""
    text = json.dumps(exports.finite(data), separators=(",", ":"))  # ASCII: U+2028 and its like are escaped too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _headline(record: ValidationRecord, todo: int) -> str:
    ran = [check for check in record.checks if check.verdict is not Verdict.SKIP]
    bad = [check for check in record.checks if check.is_bad]
    if not ran:
        return "No check was run."
    if bad:
        words = f"{len(bad)} of {len(ran)} checks " + ("is" if len(bad) == 1 else "are") + " not right"
        words += f"; {todo} thing{'' if todo == 1 else 's'} to look at"
    elif len(ran) < len(record.checks):
        words = f"{len(ran)} of {len(record.checks)} checks passed"
    else:
        words = f"All {len(ran)} checks passed" if len(ran) > 1 else "The check passed"
    return "; ".join([words, *_skipped(record)]) + "."


def _skipped(record: ValidationRecord) -> list[str]:
    """Return which checks were skipped, in a clause for each reason; the name of all nodes is left out of it."""
    everywhere = f" on {nodeset.folded(record.hosts)}"
    by_reason: dict[str, list[str]] = {}
    for check in record.checks:
        if check.verdict is Verdict.SKIP:
            by_reason.setdefault(check.reason.partition(";")[0].removesuffix(everywhere), []).append(check.check)
    clauses = [f"{_listed(names)} skipped: {reason}" for reason, names in by_reason.items()]
    rest = sum(len(names) for names in list(by_reason.values())[_REASONS:])
    return clauses[:_REASONS] + ([f"{rest} more skipped"] if rest else [])


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return and_more(names, _NAMED)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _counts(record: ValidationRecord) -> dict[str, int]:
    counts = {verdict.value: sum(check.verdict is verdict for check in record.checks) for verdict in Verdict}
    return {word: count for word, count in counts.items() if count}


def _networks(record: ValidationRecord) -> list[tuple[str, str]]:
    by_network: dict[str, list[str]] = {}
    for host, network in record.fabric.items():
        by_network.setdefault(network, []).append(host)
    return [(network, nodeset.folded(hosts)) for network, hosts in by_network.items()]


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // _MINUTE} min {int(seconds) % _MINUTE} s"


def _night(moment: datetime) -> str:
    return f"{moment.day} {moment:%b %Y, %H:%M}"


# --- A check on the page: bad ranks first, equal ranks grouped, and every list bounded --------------------------------

_RANKS = 48  # bad ranks; good ranks share lines
_PROBLEMS = 12
_GROUPS = 12
_FIGURES = 80
_COMPARISONS = 120
_EVIDENCE = 60
_STACKS = 24
_STACK = 6_000  # characters


@dataclass(frozen=True)
class Group:
    """Ranks that reported the same; ``nodes`` is folded."""

    count: int
    nodes: str
    words: str


@dataclass(frozen=True)
class Shown:
    """One check, ready for the template; the ``*_left`` fields count the entries beyond the limits."""

    result: CheckResult
    command: str
    hosts: str
    left_out: tuple[tuple[str, str], ...]
    bad_ranks: tuple[RankReport, ...]
    ranks_left: int
    groups: tuple[Group, ...]
    comparisons: tuple[Comparison, ...]
    comparisons_left: int
    figures: tuple[Figure, ...]
    figures_left: int
    evidence: tuple[str, ...]
    stacks: tuple[tuple[str, str], ...]
    log: str
    nodes: str


def shown(check: CheckResult, log: str) -> Shown:
    """Return a check as the page shows it."""
    bad = [report for report in check.ranks if not report.ok or report.state != "answered"]
    compared = sorted(check.comparisons, key=lambda one: one.verdict is not Verdict.FAIL)
    figures = [figure for figure in check.figures if not figure.nodes]
    culprits = (*check.culprits, *(check.search.culprits if check.search else ()))
    named = dict.fromkeys((*check.hosts, *(host for one in culprits for host in one.nodes)))
    return Shown(
        result=check,
        command=shlex.join(check.command),
        hosts=_folded(check.hosts),
        left_out=_left_out(check),
        bad_ranks=tuple(report.model_copy(update={"problems": report.problems[:_PROBLEMS]}) for report in bad[:_RANKS]),
        ranks_left=max(0, len(bad) - _RANKS),
        groups=_groups([report for report in check.ranks if report.ok and report.state == "answered"]),
        comparisons=tuple(compared[:_COMPARISONS]),
        comparisons_left=max(0, len(compared) - _COMPARISONS),
        figures=tuple(figures[:_FIGURES]),
        figures_left=len(check.figures) - len(figures[:_FIGURES]),
        evidence=check.evidence[:_EVIDENCE],
        stacks=tuple(
            (
                f"{one.host}, "
                + (f"rank {one.rank}" if one.rank is not None else f"process {one.pid}")
                + f" ({one.tool})",
                one.text[:_STACK],
            )
            for one in check.stacks[:_STACKS]
        ),
        log=log,
        nodes=" ".join(named),
    )


def _groups(reports: list[RankReport]) -> tuple[Group, ...]:
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for report in reports:
        said = (
            ("", report.library_version),
            ("", report.library_path),
            *report.libraries.items(),
            *report.facts.items(),
        )
        alike.setdefault(said, []).append(report.host)
    groups = [
        Group(
            count=len(hosts),
            nodes=_folded(tuple(dict.fromkeys(hosts))),
            words=", ".join(f"{name} {value}".strip() for name, value in said if value),
        )
        for said, hosts in list(alike.items())[:_GROUPS]
    ]
    if len(alike) > _GROUPS:
        rest = [host for hosts in list(alike.values())[_GROUPS:] for host in hosts]
        groups.append(Group(len(rest), _folded(tuple(dict.fromkeys(rest))), "and others"))
    return tuple(groups)


def _left_out(check: CheckResult) -> tuple[tuple[str, str], ...]:
    by_reason: dict[str, list[str]] = {}
    for node, why in check.left_out.items():
        by_reason.setdefault(why, []).append(node)
    return tuple((_folded(tuple(nodes)), why) for why, nodes in by_reason.items())


@lru_cache(maxsize=64)
def _folded(hosts: tuple[str, ...]) -> str:
    return nodeset.folded(hosts)
