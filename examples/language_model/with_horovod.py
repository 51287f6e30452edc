"""A language model under Horovod with PyTorch: the total batch is shared out, the perplexity is that of one process.

Shows hvd.DistributedOptimizer with gradients that are clipped after they were averaged (synchronize, then step without
it), and a perplexity over everybody's share of the text.

    clusterctl run inventory.ini --sync examples -- python language_model/with_horovod.py

With -np 1 the perplexity is the same within 1e-8 of it (with --single within 1e-3). With the Penn Treebank's text files
in the same folder on every node, add --data FOLDER.
"""

import os

import horovod.torch as hvd
import language_model as lm
import torch

args = lm.arguments("Train a language model under Horovod.")
hvd.init()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank())
else:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))  # the processes of a node share its cores
text = lm.read(args, hvd.rank(), hvd.size(), hvd.allgather_object)
train, valid = text.train.to(device), text.valid.to(device)

model = lm.Model(text.words, args.width).to(device, torch.float32 if args.single else torch.float64)
optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(args.epochs):
    for loss, _unused in lm.losses(model, train, args.window):
        optimizer.zero_grad()
        loss.backward()
        optimizer.synchronize()  # from here on the gradients are the averages over all processes
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    sums = hvd.allreduce(lm.loss_and_words(model, valid, args.window), op=hvd.Sum, name="loss and words")
    perplexity = lm.perplexity(*sums.tolist())
    if hvd.rank() == 0:
        print(f"epoch {epoch}: perplexity {perplexity:.10f} on {hvd.size()} rank(s)", flush=True)
