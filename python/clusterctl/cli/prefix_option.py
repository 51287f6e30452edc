"""The option ``--cluster-prefix`` of commands that read no inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from clusterctl.model.layout import Layout

NAME, METAVAR = "--cluster-prefix", "PATH"
HELP = "The folder of the software on the nodes, as cluster_prefix of the inventory names it. Default: /usr/local."


def layout_of(prefix: str) -> Layout:
    """Return where the software lies.

    Args:
        prefix: the value of the option, '' for the default.

    Raises:
        ConfigError: it is not a folder for software.
    """
    from clusterctl.model import layout, prefixes  # noqa: PLC0415 - see cli.main: --help stays quick

    if wrong := prefixes.problem({"cluster_prefix": prefix}):
        raise ConfigError(f"{NAME}: {wrong}.")
    return layout.Layout(prefix) if prefix else layout.DEFAULT_LAYOUT
