"""The folder for temporary files, chosen as Python's ``tempfile`` chooses it but without its trial file.

``tempfile.gettempdir`` writes a file into the folder to see that it can. A program that is killed at that moment leaves
the file behind.

It needs the standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
USUAL = ("/tmp", "/var/tmp")  # noqa: S108 - the folders of the machine; files in them get names of their own


def chosen() -> str:
    """Return the first folder that this user can write to, /tmp if there is none."""
    named = (str(Path(folder).absolute()) for name in _VARIABLES if (folder := os.environ.get(name)))
    return next((folder for folder in (*named, *USUAL) if os.access(folder, os.W_OK | os.X_OK)), USUAL[0])
