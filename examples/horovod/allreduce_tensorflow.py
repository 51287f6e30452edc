"""Allreduce with Horovod and TensorFlow 2: sums and averages over all processes, on all of them.

Shows hvd.allreduce eagerly and inside a tf.function, where a whole training step usually is.

    clusterctl run inventory.ini --sync examples -- python horovod/allreduce_tensorflow.py
"""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")


@tf.function
def mean_and_double(values):
    """Average over all processes inside a graph."""
    return 2.0 * hvd.allreduce(values, op=hvd.Average, name="mean")


mine = tf.fill([4], rank + 1.0)
total = hvd.allreduce(mine, op=hvd.Sum, name="total")
doubled = mean_and_double(mine)

expected = size * (size + 1) / 2  # 1 + 2 + ... + size
right = bool(tf.reduce_all(total == expected)) and bool(tf.reduce_all(abs(doubled - (size + 1)) < 1e-5 * size))
right = all(hvd.allgather_object(right))
if rank == 0:
    verdict = "right" if right else "WRONG"
    print(f"sum {total[0]:g} and average {doubled[0] / 2:g} on each of {size} processes: {verdict}")
sys.exit(0 if right else 1)
