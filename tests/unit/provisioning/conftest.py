"""Makes the collection importable by its own names: what nodes answer is made by the probe itself."""

from __future__ import annotations

import sys

from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))
