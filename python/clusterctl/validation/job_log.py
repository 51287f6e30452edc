"""The log of a check's job: the command, the hostfile, how it ended, and every line of output with its time."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.remote.supervised_job import JobSpec
    from clusterctl.validation.checks.base import Site


def text(spec: JobSpec, outcome: JobOutcome, site: Site, notes: Iterable[str] = ()) -> str:
    """Return the text of the log; ``notes`` tell the place of each rank."""
    ended = {name: getattr(outcome, name) for name in ("ending", "rc", "ending_s", "seconds", "problem")}
    head = [
        f"# job      {spec.job}",
        f"# command  {shlex.join(outcome.argv or spec.argv)}",
        f"# hostfile {json.dumps(dict(site.slots))}",
        f"# outcome  {json.dumps(ended)}",
    ]
    head += [f"# place    {note}" for note in notes]
    for sweep in outcome.sweeps:
        found = [f"killed {words}" for words in sweep.killed] + [f"LEFT {words}" for words in sweep.left]
        head.append(f"# sweep    {sweep.host}: {sweep.problem or '; '.join(found) or 'nothing left'}")
    lines = [f"{line.at_s:9.3f} {line.stream} {line.text}" for line in outcome.lines]
    return "\n".join([*head, *lines]) + "\n"
