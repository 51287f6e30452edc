# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action plugin source_fetch, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: source_fetch
short_description: Fetch a source to the controller's cache and verify it
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Returns the path of a file in the controller's cache with the pinned sha256. Fetches it from the first of O(sources)
    that has it. A file in the cache is hashed again at each use.
  - Runs on the controller without a connection to the host.
options:
  name:
    description: Name of the software.
    type: str
    required: true
  version:
    description: Version of the software.
    type: str
    required: true
  cache_dir:
    description: The controller's cache folder.
    type: str
    required: true
  sources:
    description:
      - Origins of the file, tried in order.
      - Each has its own sha256, because distributors pack the same release differently.
      - An entry with C(url) and C(sha256) is fetched by http or https, with the machine's proxy settings.
      - An entry with C(path) and C(sha256) is a file on the controller.
      - An entry with C(apt) (C(package), C(version), C(sha256), and C(component) unless that is V(main)) is a
        distribution's source package, fetched from the mirror that the controller's own apt uses, in apt folders of its
        own. It needs no root and leaves the machine's apt alone.
    type: list
    elements: dict
    required: true
  variable:
    description: The user's variable that lists sources, named in messages. The default is V(NAME_sources).
    type: str
  early:
    description:
      - Begins to fetch in the background and returns at once. The task that needs the file waits for it.
      - Does nothing in check mode, where the cache has the file or an artifact of this name and version, and where
        C(cluster_cache) names a shared cache.
      - A failure is silent. The task that needs the file tries again, and says why it fails.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports whether the file would be fetched, and fetches nothing.
    support: full
  diff_mode:
    description: The module changes no text.
    support: none
"""

EXAMPLES = r"""
- name: Fetch a release
  clusterctl.hpc.source_fetch:
    name: demo
    version: "1.0"
    cache_dir: "{{ lookup('ansible.builtin.env', 'HOME') }}/.cache/clusterctl"
    sources:
      - url: https://example.org/demo-1.0.tar.bz2
        sha256: "0000000000000000000000000000000000000000000000000000000000000000"
"""

RETURN = r"""
path: {description: The verified file in the controller's cache., type: str, returned: without O(early)}
sha256: {description: Its sha256., type: str, returned: without O(early)}
source: {description: The source that had it., type: str, returned: without O(early)}
cached: {description: Whether the cache already had it., type: bool, returned: without O(early)}
begun: {description: Whether it is being fetched in the background., type: bool, returned: with O(early)}
"""
