"""Makes the collection importable under the name that its own plugins use."""

from __future__ import annotations

import sys

from clusterctl import content

sys.path.insert(0, str(content.collections_path()))
