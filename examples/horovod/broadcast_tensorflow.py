"""Broadcast of variables with Horovod and TensorFlow 2: everybody goes on with the model and the optimizer of rank 0.

Shows hvd.broadcast_variables and, for any Python object, hvd.broadcast_object. Models and optimizers of Keras have
their variables only after they were built or have made a step, so that is when they are sent.

    clusterctl run inventory.ini --sync examples -- python horovod/broadcast_tensorflow.py
"""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Every process begins elsewhere and makes a step of its own.
dense = tf.keras.layers.Dense(2, use_bias=False, kernel_initializer=tf.keras.initializers.Constant(rank + 0.5))
model = tf.keras.Sequential([dense])
model.build([None, 3])
optimizer = tf.keras.optimizers.SGD(learning_rate=0.25, momentum=0.5)
optimizer.apply_gradients([(tf.fill([3, 2], rank + 1.0), dense.kernel)])

hvd.broadcast_variables(model.variables, root_rank=0)
hvd.broadcast_variables(optimizer.variables, root_rank=0)
epoch = hvd.broadcast_object(7 if rank == 0 else 0, root_rank=0)

weight, momentum = dense.kernel.numpy(), optimizer.variables[-1].numpy()
right = all(hvd.allgather_object(bool((weight == 0.25).all() and (momentum == -0.25).all() and epoch == 7)))
if rank == 0:
    verdict = "right" if right else "WRONG"
    print(f"weight {weight[0]}, momentum {momentum[0]} and epoch {epoch} on each of {size} processes: {verdict}")
sys.exit(0 if right else 1)
