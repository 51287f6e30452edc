# SPDX-License-Identifier: GPL-3.0-or-later
"""Read ``key=value`` words as Ansible's option ``--extra-vars`` does: its own parser knows quotes and templates."""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible.parsing.splitter import parse_kv

from clusterctl.support.errors import ConfigError


def parsed(words: str) -> dict[str, str]:
    """Return the variables.

    Raises:
        ConfigError: a quote has no end.
    """
    try:
        found = parse_kv(words)
    except AnsibleError:
        raise ConfigError(
            "A value of --extra-vars has unbalanced quotes; write key=value, a JSON mapping or @PATH."
        ) from None
    return {str(name): str(word) for name, word in found.items()}
