"""Allgather with Horovod and TensorFlow 2: everybody gets the rows of all processes, from each as many as it has.

Shows hvd.allgather with unequal first dimensions: rank r gives r + 1 rows.

    clusterctl run inventory.ini --sync examples -- python horovod/allgather_tensorflow.py
"""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

mine = tf.fill([rank + 1, 2], float(rank))
rows = hvd.allgather(mine, name="rows")

expected = tf.repeat(tf.range(size), tf.range(1, size + 1))  # 0, 1, 1, 2, 2, 2, ...
right = rows.shape == (len(expected), 2) and bool(tf.reduce_all(rows == tf.cast(expected, tf.float32)[:, None]))
right = all(hvd.allgather_object(right))
if rank == 0:
    first = [int(value) for value in rows[:, 0]]
    print(f"{len(rows)} rows on each of {size} processes, by rank {first}: {'right' if right else 'WRONG'}")
sys.exit(0 if right else 1)
