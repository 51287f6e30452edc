"""Stand-ins for Slurm's commands: they say what Slurm says, and write down what they were asked."""

from __future__ import annotations

from pathlib import Path

import pytest

SINFO = """\
main*|node1|192.0.2.11|1|2|1|(null)|idle|none
main*|node2|192.0.2.12|1|2|1|(null)|idle|none
gpu|n[1]|192.0.2.21|2|32|2|gpu:a100:8(S:0-1)|mixed|none
"""
_SALLOC = r"""#!/bin/sh
child=
trap 'echo cancelled >>"$STAND_IN/log"; kill $child 2>/dev/null; exit 143' TERM
echo $$ >"$STAND_IN/pid"
while case $1 in --*) true;; *) false;; esac; do echo "$1" >>"$STAND_IN/options"; shift; done
mode=$(cat "$STAND_IN/mode")
case $mode in
  refused) echo "salloc: error: Job submit/allocate failed: Invalid account or account/partition combination" \
    "specified" >&2; exit 1;;
  down) echo "salloc: error: Job submit/allocate failed: Unable to contact slurm controller (connect failure)" >&2
    exit 1;;
esac
echo "salloc: Pending job allocation 42" >&2
exec 3<&0
if [ "$mode" = pending ]; then
  echo "salloc: job 42 queued and waiting for resources" >&2
  sleep 60 <&- 3<&- >&- 2>&- & child=$!
  wait $child; exit 1
fi
echo "salloc: Granted job allocation 42" >&2
export SLURM_JOB_ID=42 SLURM_JOB_NODELIST='node[1-2]' SLURM_JOB_CPUS_PER_NODE='2(x2)'
"$@" <&3 & child=$!
if [ "$mode" = timeout ]; then
  until [ -e "$STAND_IN/late" ]; do sleep 0.1; done
  echo "TIMEOUT||TimeLimit" >"$STAND_IN/state"
  echo "salloc: Job 42 has exceeded its time limit and its allocation has been revoked." >&2
  kill $child
fi
if [ "$mode" = cancelled ]; then
  until [ -e "$STAND_IN/late" ]; do sleep 0.1; done
  echo "COMPLETING|node[1-2]|None" >"$STAND_IN/state"
  echo "salloc: Job allocation 42 has been revoked." >&2
  kill $child
fi
wait $child
echo "salloc: Relinquishing job allocation 42" >&2
echo released >>"$STAND_IN/log"
"""
_OTHERS = {
    "squeue": 'case "$*" in *--steps*) cat "$STAND_IN/steps" 2>/dev/null;; *) cat "$STAND_IN/state";; esac',
    "sinfo": 'cat "$STAND_IN/sinfo"',
    "srun": r"printf 'MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4\n'",
    "scancel": 'echo "scancel $*" >>"$STAND_IN/log"; cat "$STAND_IN/refusal" >&2 2>/dev/null && exit 1; exit 0',
    "scontrol": r"""case "$*" in
  "show hostnames "*) printf 'node1\nnode2\n';;
  "update "*) if [ -e "$STAND_IN/denied" ]; then echo "slurm_update error: Access/permission denied" >&2; exit 1; fi
    echo "scontrol $*" >>"$STAND_IN/log";;
  "show config") printf 'Configuration data as of now\nClusterName             = sandbox\n';;
esac""",
}


class StandIn:
    """A folder of stand-ins; salloc: granted, pending, refused, down; timeout, cancelled (at a file ``late``)."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.path = folder, f"{folder / 'bin'}:/usr/bin:/bin"
        (folder / "bin").mkdir()
        for name, text in {"salloc": _SALLOC, **_OTHERS}.items():
            place = folder / "bin" / name
            place.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
            place.chmod(0o755)
        self.say("mode", mode)
        self.say("state", "PENDING||Resources" if mode == "pending" else "RUNNING|node[1-2]|None")
        self.say("sinfo", SINFO)

    def say(self, name: str, text: str) -> None:
        """Set what a stand-in answers."""
        (self.folder / name).write_text(text)

    def read(self, name: str) -> list[str]:
        """Return the lines that stand-ins have written down."""
        place = self.folder / name
        return place.read_text().splitlines() if place.exists() else []

    def use(self, monkeypatch: pytest.MonkeyPatch) -> StandIn:
        """Put the stand-ins first in PATH."""
        monkeypatch.setenv("PATH", self.path)
        monkeypatch.setenv("STAND_IN", str(self.folder))
        return self
