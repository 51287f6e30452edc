"""IP addresses and networks that nodes and users gave, by the rules that the roles use as well.

The rules are the collection's ``plugins/module_utils/ip_address``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from module_utils import ip_address as _rules  # mypy finds it by mypy_path
else:
    _rules = content.module_util("ip_address")

IpAddress = _rules.IpAddress
IpNetwork = _rules.IpNetwork
parsed = _rules.parsed
network = _rules.network
network_or_none = _rules.network_or_none


def inside(address: str, cidrs: Iterable[str]) -> bool:
    """Tell whether an address, with or without a scope, is in one of the networks; what is neither is in none."""
    try:
        found = parsed(address, may_have_scope=True)
    except ValueError:
        return False
    return any(found in one for cidr in cidrs if (one := network_or_none(cidr)) is not None)
