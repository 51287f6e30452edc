"""The variables with which PyTorch's flight recorder writes a record on request, and the jobs that get them.

``make test-gpu`` imports it too, on machines that have the standard library alone.
"""

from __future__ import annotations

import itertools
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.launch import launchers

if TYPE_CHECKING:
    from clusterctl.launch.compose import JobOptions

# A rank with NCCL writes what TORCH_NCCL_DEBUG_INFO_PIPE_FILE asks for into the file of TORCH_FR_DUMP_TEMP_FILE
# (https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html). The buffer and the file have older
# names with NCCL in them, of which PyTorch warns from 2.8 on. By their headers, 2.8 to 2.10 make no pipe without the
# older name of the buffer, so their warning stays; 2.11 needs none. Gloo's calls are recorded too, but not written.

CALLS = 2000  # the size that PyTorch's tutorial recommends, and the default of later releases
_PYTHON = re.compile(r"python(\d[\d.]*)?")
_FILE_RENAMED = (2, 8)
_BUFFER_RENAMED = (2, 11)
# Whoever sets one of these has plans of his own.
NAMES = frozenset(
    {
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    }
)


def is_for(wish: JobOptions) -> bool:
    """Whether a job's ranks are programs in Python, with no setting of the user's for the recorder.

    In a container the folder of the pipe may be missing, and PyTorch ends a rank that cannot make its pipe.
    """
    first = launchers.parted(wish.launcher, wish.program)[1][0] if wish.program else ""
    by_launcher = launchers.TRAITS[wish.launcher].runs_scripts and (first == "-m" or first.endswith(".py"))
    runs_python = by_launcher or _PYTHON.fullmatch(PurePosixPath(first).name) is not None
    return runs_python and not {word.partition("=")[0] for word in wish.exported} & NAMES


def exported(folder: str, release: str) -> tuple[str, ...]:
    """Return the values of ``-x`` for a job."""
    numbers = _numbers(release)
    size = "TORCH_FR_BUFFER_SIZE" if numbers >= _BUFFER_RENAMED else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    file = "TORCH_FR_DUMP_TEMP_FILE" if numbers >= _FILE_RENAMED else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    return (
        f"{size}={CALLS}",
        f"{file}={folder}/record_",
        f"TORCH_NCCL_DEBUG_INFO_PIPE_FILE={folder}/pipe_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1",  # without it the pipe is looked at every eight minutes, with it every second
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in itertools.takewhile(str.isdigit, release.split(".")))
