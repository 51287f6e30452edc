"""The environment of all tests: programs that they start see no width, unless a test sets one.

readline, which pytest loads, exports COLUMNS and LINES to every program that is started, past os.environ.
"""

from __future__ import annotations

import os

for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)
