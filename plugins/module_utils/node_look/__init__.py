# SPDX-License-Identifier: Apache-2.0
"""Look at one node and answer in one trip everything that clusterctl asks about it.

One module per subject; ``record`` joins them. ``hardware`` is the longer look that doctor takes. The package needs the
standard library of Python 3.9 alone and changes nothing on the node. ``record`` starts a process only if asked, to
check sudo, to ask a library for its version or to log in.

The package runs in three ways:

- over ssh, as a zip on stdin (``clusterctl.remote.python``): the request follows the zip, one line of JSON comes back;
- by hand: ``python3 -m node_look.record '{}'`` in this package's folder's parent;
- imported by Ansible modules. They import the one module that they need, so that Ansible ships no more than that.
"""
