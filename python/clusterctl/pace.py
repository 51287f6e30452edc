"""The two calls of a training loop that 'clusterctl run --pace' reads: the module that nodes have, for this machine.

    from clusterctl import pace

On provisioned nodes, ``run --pace`` puts the same module on PYTHONPATH, and clusterctl need not be installed there.
"""

from __future__ import annotations

from clusterctl.support import content

_node_module = content.node_module("pace/clusterctl/pace.py")
step = _node_module.step
waiting = _node_module.waiting
