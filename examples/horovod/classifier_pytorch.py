"""An image classifier under Horovod with PyTorch: handwritten digits, shared out over all processes.

Shows what turns a script for one process into one for many: an own part of the images, hvd.DistributedOptimizer, a
learning rate that grows with the number of processes, hvd.broadcast_parameters at the start, metrics as averages over
all, and checkpoints that rank 0 alone writes and reads.

    clusterctl run inventory.ini --sync examples -- python horovod/classifier_pytorch.py

takes the digits of scikit-learn; with MNIST's four files in the same folder on every node, add --data FOLDER.
"""

import argparse
import os
import sys
from pathlib import Path

import digits
import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits under Horovod.")
parser.add_argument("--data", metavar="FOLDER", help="MNIST's idx files; without it, scikit-learn's digits")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="images of one process in a step")
parser.add_argument("--rate", type=float, default=0.05, help="learning rate of one process")
parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="read by rank 0 if it is there, written each epoch")
args = parser.parse_args()


def new_model():
    """Return a small convolutional network for images of any size."""
    return nn.Sequential(
        nn.Unflatten(1, (1, -1)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def test():
    """Return loss and accuracy over all test images, of which every process looks at its share."""
    model.eval()
    sums = torch.zeros(3, device=device)  # loss, right answers, images
    with torch.no_grad():
        shares = (whole[hvd.rank() :: hvd.size()].split(1000) for whole in (test_images, test_labels))
        for images, labels in zip(*shares):
            scores = model(images)
            loss = functional.cross_entropy(scores, labels, reduction="sum")
            sums += torch.stack([loss, (scores.argmax(1) == labels).sum(), torch.tensor(len(labels), device=device)])
    loss, right, number = hvd.allreduce(sums, op=hvd.Sum, name="metrics").tolist()
    return loss / number, right / number


hvd.init()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank())
else:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))  # the processes of a node share its cores
images = digits.load(args.data, hvd.rank(), hvd.allgather_object)
train_images, train_labels, test_images, test_labels = (torch.from_numpy(array).to(device) for array in images)

torch.manual_seed(1)
model = new_model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.rate * hvd.size(), momentum=0.5)
first_epoch = 0
if hvd.rank() == 0 and args.checkpoint and args.checkpoint.exists():
    saved = torch.load(args.checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first_epoch = saved["epoch"] + 1
first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

# Everybody makes the same number of steps, or the last one would wait for others that have gone.
steps = len(train_images) // (args.batch_size * hvd.size())
if steps == 0:
    sys.exit(
        f"{len(train_images)} images are less than one step of {hvd.size()} processes; take a smaller --batch-size."
    )
loss, accuracy = test()
for epoch in range(first_epoch, args.epochs):
    model.train()
    order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(epoch))  # the same everywhere
    for step in range(steps):
        first = (step * hvd.size() + hvd.rank()) * args.batch_size
        mine = order[first : first + args.batch_size]
        optimizer.zero_grad()
        functional.cross_entropy(model(train_images[mine]), train_labels[mine]).backward()
        optimizer.step()  # waits for the average of all gradients
    loss, accuracy = test()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f} on {len(test_labels)} test images", flush=True)
        if args.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            new = args.checkpoint.with_suffix(".new")
            torch.save(state, new)
            new.replace(args.checkpoint)  # whoever is interrupted leaves the last whole one

if hvd.rank() == 0:
    print(f"accuracy {accuracy:.4f} after {args.epochs} epochs on {hvd.size()} processes")
