# SPDX-License-Identifier: Apache-2.0
"""Look at the hardware of one node: GPUs, links, counters, the kernel's log, disks, memory, settings of the machine.

Each section is a function ``read_SECTION(tree, answer, request)``; ``record`` runs them. The package needs the standard
library of Python 3.9 alone, changes nothing on the node, and needs no root: what only root may read is named in
``unseen``.

It runs over ssh as a zip on stdin (``clusterctl.remote.facts``), and by hand:
``python3 -m node_look.hardware.record '{}'`` in the folder of ``node_look``.
"""
