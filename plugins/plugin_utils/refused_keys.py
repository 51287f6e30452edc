# SPDX-License-Identifier: GPL-3.0-or-later
"""Have Ansible remove keys of a module's result that its main process would use without a look at their form."""

from __future__ import annotations

from ansible import constants  # type: ignore[import-untyped]

_SETTING = "INTERNAL_RESULT_KEYS"  # Ansible removes these from what a module answers, with a warning
# A number in its place ends the whole run, without the name of the node. No module of the collection answers with it.
_KEYS = ("ansible_stats",)


def use() -> None:
    """Remove the keys from now on; a release of Ansible without the setting goes on as it is."""
    known = getattr(constants, _SETTING, None)
    if isinstance(known, tuple):
        setattr(constants, _SETTING, (*known, *(key for key in _KEYS if key not in known)))
