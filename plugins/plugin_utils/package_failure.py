# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn what a package manager says of a failure into one sentence, where its cause is known."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

# apt's words for a list that is a page of HTML, and for a package of another size than its list says.
_ANOTHER_FILE = re.compile(
    r"Failed to fetch (?P<url>\S+)\s+(?P<why>Clearsigned file isn't valid|File has unexpected size|Hash Sum mismatch)"
)


# Ansible's words for a package manager whose module it lacks.
_NO_MODULE = re.compile(r"Could not find a matching action for the \"(?P<manager>\S+)\" package manager")


def told(text: str) -> str:
    """Return the sentence for a failure, or its text where the cause is not known.

    Args:
        text: what the package manager, or Ansible's module for it, said.
    """
    lacking = _NO_MODULE.search(text)
    if lacking is not None:
        return (
            f"Ansible on the controller has no module for {lacking['manager']}; run 'ansible-galaxy "
            "collection install community.general' there, then run again."
        )
    found = _ANOTHER_FILE.search(text)
    if found is None:
        return text
    url = urlsplit(found["url"])
    file = url.path.rpartition("/")[2]
    return (
        f"the package mirror {url.hostname or 'of this host'} sent another file in place of {file}, such as a login or "
        f"an error page in HTML ({found['why']}); correct the mirror in /etc/apt/sources.list* or apt's proxy, then "
        "run again."
    )
