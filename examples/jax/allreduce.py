"""A sum over all processes with JAX: `jax.distributed.initialize()` finds the cluster without arguments.

clusterctl run inventory.ini --launcher jax --sync examples -- python jax/allreduce.py
"""

import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize()
number, count = jax.process_index(), jax.process_count()
values = multihost_utils.process_allgather(np.array([number + 1.0]))
right = float(values.sum()) == count * (count + 1) / 2 and jax.device_count() >= count
if number == 0:
    print(f"sum {values.sum():g} of {count} processes: {'right' if right else 'WRONG'}", flush=True)
multihost_utils.sync_global_devices("done")
jax.distributed.shutdown()
sys.exit(0 if right else 1)
