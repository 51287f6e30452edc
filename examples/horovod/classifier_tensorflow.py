"""An image classifier under Horovod with TensorFlow 2 and Keras: handwritten digits, shared out over all processes.

Shows what turns a script for one process into one for many: an own part of the images, hvd.DistributedOptimizer, a
learning rate that grows with the number of processes, hvd.broadcast_variables at the start, metrics as averages over
all, and checkpoints that rank 0 alone writes and reads.

    clusterctl run inventory.ini --sync examples -- python horovod/classifier_tensorflow.py

takes the digits of scikit-learn; with MNIST's four files in the same folder on every node, add --data FOLDER.
"""

import argparse
import os
import sys

import digits
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf
from tensorflow.keras import layers

parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits under Horovod.")
parser.add_argument("--data", metavar="FOLDER", help="MNIST's idx files; without it, scikit-learn's digits")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="images of one process in a step")
parser.add_argument("--rate", type=float, default=0.05, help="learning rate of one process")
parser.add_argument("--checkpoint", metavar="FOLDER", help="read by rank 0 if there is one, written each epoch")
args = parser.parse_args()


def new_model(height, width):
    """Return a small convolutional network."""
    return tf.keras.Sequential(
        [
            layers.Reshape((height, width, 1), input_shape=(height, width)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class OnRank0(tf.keras.callbacks.Callback):
    """What one process does for all after an epoch: say how it went, and write the checkpoint."""

    def on_epoch_end(self, number, logs):
        """Runs after MetricAverageCallback, so that these are the averages over all processes."""
        print(f"epoch {number}: loss {logs['val_loss']:.4f}, accuracy {logs['val_accuracy']:.4f}", flush=True)
        epoch.assign(number + 1)
        if manager:
            manager.save()


hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
else:  # the processes of a node share its cores
    tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
images = digits.load(args.data, hvd.rank(), hvd.allgather_object)
train_images, train_labels, test_images, test_labels = images

# Equal shares, so that everybody makes the same number of steps and an average over processes is one over images.
steps = len(train_images) // (args.batch_size * hvd.size())
if steps == 0:
    sys.exit(
        f"{len(train_images)} images are less than one step of {hvd.size()} processes; take a smaller --batch-size."
    )
share = slice(hvd.rank(), len(test_images) // hvd.size() * hvd.size(), hvd.size())
mine = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).shard(hvd.size(), hvd.rank())
mine = mine.shuffle(len(train_images), seed=1).repeat().batch(args.batch_size)

tf.keras.utils.set_random_seed(1)
model = new_model(*train_images.shape[1:])
optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(args.rate * hvd.size(), momentum=0.5))
optimizer.build(model.trainable_variables)  # now it has its variables, which can be read and sent
epoch = tf.Variable(0, dtype=tf.int64)
manager = None
if hvd.rank() == 0 and args.checkpoint:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    manager = tf.train.CheckpointManager(checkpoint, args.checkpoint, max_to_keep=1)
    manager.restore_or_initialize()
hvd.broadcast_variables([*model.variables, *optimizer.variables, epoch], root_rank=0)

model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(
    mine,
    steps_per_epoch=steps,
    initial_epoch=int(epoch),
    epochs=args.epochs,
    validation_data=(test_images[share], test_labels[share]),
    callbacks=[hvd_keras.callbacks.MetricAverageCallback(), *([OnRank0()] if hvd.rank() == 0 else [])],
    verbose=0,
)
_unused, accuracy = model.evaluate(test_images[share], test_labels[share], verbose=0)
accuracy = float(hvd.allreduce(tf.constant(accuracy), op=hvd.Average, name="accuracy"))
if hvd.rank() == 0:
    print(f"accuracy {accuracy:.4f} after {args.epochs} epochs on {hvd.size()} processes")
