"""Parameters by which Open MPI chooses TCP networks; it refuses an inclusion and its exclusion together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of MPI's messages, and of the runtime of 4.1 and 5.0.
INCLUSION_OF: Mapping[str, str] = {
    "btl_tcp_if_exclude": "btl_tcp_if_include",
    "oob_tcp_if_exclude": "oob_tcp_if_include",
    "prte_if_exclude": "prte_if_include",
}
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")


def plain(name: str) -> str:
    """Return the name of a parameter without the prefix that it has as a variable."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
