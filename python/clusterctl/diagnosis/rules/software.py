"""Do the nodes have the same software, and does what is installed fit together?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import skew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding

ORDER = 40


def findings(view: View) -> Iterator[Finding]:
    """Return what differs between the nodes' software, and what does not fit on a node."""
    yield from skew.differences(view.nodes)
    yield from skew.stacked(view.nodes, view.nccl_align)
