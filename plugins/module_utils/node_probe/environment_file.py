# SPDX-License-Identifier: Apache-2.0
"""Read /etc/environment the way pam_env does."""

from __future__ import annotations


def read_environment_file(text: str) -> dict[str, str]:
    """Return the variables in the text of /etc/environment; quotes around a value are dropped."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        words = line.strip()
        if words.startswith("export "):
            words = words[7:].lstrip()
        name, separator, value = words.partition("#")[0].rstrip().partition("=")
        if not separator or not name:
            continue
        if value[:1] in {'"', "'"}:
            value = value[1:]
            if value[-1:] in {'"', "'"}:
                value = value[:-1]
        found[name] = value
    return found
