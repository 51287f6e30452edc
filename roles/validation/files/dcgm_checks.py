"""Run NVIDIA's own diagnostics, ``dcgmi diag``, on every node, and report each test that fails.

mpirun starts one process per node; MPI is not used. ``rank_program.py`` explains the lines that they print, and
``dcgm_diag.py`` the answer. The facts of a node are ``dcgm`` (``absent``, ``no_answer`` or ``ran``), ``dcgm_why``,
``dcgm_counts``, ``dcgm_version`` and ``dcgm_warnings``. dcgmi asks the host engine (``nv-hostengine``), which does the
tests. Its exit code is not read, since settings alone make it differ from 0.
"""

from __future__ import annotations

import shutil
import sys

import dcgm_diag
import rank_program

CHECK = "dcgm"
SHARE = 0.85  # of the deadline, for dcgmi


def diagnose(rank: rank_program.Rank) -> None:
    """Run it where it is installed."""
    rank.findings.compared += 1  # the node answered; the facts say what it knows
    program = shutil.which(dcgm_diag.PROGRAM)
    if not program:
        rank.facts["dcgm"] = "absent"
        return
    level, limit_s = rank.arguments.level, SHARE * rank.arguments.deadline
    rank.doing(f"dcgmi diag, level {level}")
    answer = dcgm_diag.run(dcgm_diag.command(program, level), limit_s)
    rank.figures["dcgm_s"] = round(answer.seconds, 3)
    try:
        report = dcgm_diag.read_answer(answer)
    except ValueError as problem:
        rank.facts.update(dcgm="no_answer", dcgm_why=str(problem))
        return
    rank.facts.update(dcgm="ran", dcgm_counts=report.counts, dcgm_version=report.version)
    rank.facts["dcgm_warnings"] = "; ".join(f"{one.test} {one.place}: {one.words}" for one in report.warned)
    rank.findings.compared += report.passed
    for one in report.failed:
        where = f" on {one.place}" if one.place else ""
        rank.findings.note(f"DCGM's test {one.test}{where}", "Pass", one.told)


def work(rank: rank_program.Rank) -> int:
    """Report; the code is 0 in any case, since mpirun would end the other nodes with an error."""
    rank.libraries = ()
    rank.begin()
    rank.attempt(lambda: diagnose(rank))
    return 0


def main() -> int:
    """Say that this rank is up, then diagnose."""
    parser = rank_program.parser("Run dcgmi diag. Started by mpirun, one process a node.", [CHECK])
    parser.add_argument("--level", type=int, choices=(1, 2, 3, 4), default=1, help="of dcgmi diag -r")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
