"""What a run would be made from now; a later run compares it with what the last run was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl import __version__
from clusterctl.provisioning import plan
from clusterctl.support import content

if TYPE_CHECKING:
    from clusterctl.model.hosts import Inventory, InventoryOptions
    from clusterctl.state.certificates import Certificates


def inputs_of(
    cluster: Inventory, options: InventoryOptions, extra_vars: str, held: str, certificates: Certificates
) -> plan.Inputs:
    """Return what a run would be made from now; ``extra_vars`` is their digest, ``held`` the run of a hold."""
    return plan.Inputs(
        inventory=cluster.digest,
        content=content.digest(),
        version=__version__,
        options={"extra_vars": extra_vars, "become": str(options.become), "user": options.user or ""},
        held=held,
        revoked=certificates.revoked,
    )
