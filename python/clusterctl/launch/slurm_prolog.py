"""The prolog of Slurm that looks at a node before each job, and drains a node that is not fit."""

from __future__ import annotations

from clusterctl.model.drains import OF_CHECK_NODE
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout

_PROGRAM = "check_node.py"  # of the role validation
_PYTHON = "/usr/bin/python3"
_UNKNOWN = 11  # the status of a look that was killed
_HEAD = """\
#!/bin/sh
# Prolog of Slurm: it lets a job start where the node is fit, by 'clusterctl render slurm-prolog'.
#
#   install -m 755 THIS /etc/slurm/clusterctl-prolog.sh      on each node
#   Prolog=/etc/slurm/clusterctl-prolog.sh                   in slurm.conf
#
# Epilog and HealthCheckProgram may name the same file. Run it by hand on each node first: it drains an unfit node.
# slurmd runs it as root, and it needs no clusterctl on the node: provision has left the program that it starts.
said=$(timeout --signal=KILL {kill_s:.0f} {python} -I -S {program} --quick --deadline {deadline_s:g} 2>&1) && exit 0
status=$?
node=${{SLURMD_NODENAME:-$(hostname -s)}}
said=${{said:-"$node: the check of the node gave no answer; run '{program} --quick' by hand"}}
said=$(printf '%s' "$said" | tail -n 1)
printf '%s\\n' "$said" >&2
logger -t clusterctl-prolog -- "$said" 2>/dev/null
# Somebody killed the look, which says nothing about the node; the next job's prolog looks again.
[ "$status" -eq {unknown} ] && exit 0
"""
_DRAIN = """\
# slurmd drains a node whose prolog fails as "Prolog error". A reason that the node has already stays.
timeout {kill_s:.0f} scontrol update nodename="$node" state=drain reason="{prefix} ${{said#*: }}"
"""
_END = """\
exit 1
"""


def script(*, with_reason: bool, deadline_s: float, layout: Layout = DEFAULT_LAYOUT) -> str:
    """Return the script.

    Args:
        with_reason: drain the node by scontrol, with what is wrong as the reason; otherwise the prolog only fails.
        deadline_s: of the look at the node.
        layout: where the software lies on the nodes.
    """
    kill_s, program = deadline_s + 10, layout.program(_PROGRAM)
    head = _HEAD.format(kill_s=kill_s, python=_PYTHON, program=program, deadline_s=deadline_s, unknown=_UNKNOWN)
    return head + (_DRAIN.format(kill_s=kill_s, prefix=OF_CHECK_NODE) if with_reason else "") + _END
