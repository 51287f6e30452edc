"""A small language model of words, and the text for it: what with_horovod.py and with_ddp.py beside this file share.

The text is cut into as many columns as the total batch has, and each process takes its share of the columns. All do
the same steps, and the mean over processes of the mean over equal shares is the mean over the batch: so the perplexity
is that of one process, but for the order of additions. What would break it is left out: dropout, and shares that
differ in size.
"""

import argparse
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

SEED = 20240229
# Generated text: each word has four successors, taken with these probabilities. No model can be less perplexed than
# exp(entropy) of them, which is 3.35, and one that knows nothing has the number of words as its perplexity.
WORDS = 50
PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.1])
LENGTHS = {"train": 24_000, "valid": 6_000}


class DataError(Exception):
    """The text cannot be had; the exception's own says why in one sentence."""


def arguments(description):
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", metavar="FOLDER", help="ptb.train.txt and ptb.valid.txt; else generated text")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--window", type=int, default=20, help="words through which a gradient goes back")
    parser.add_argument("--width", type=int, default=32, help="of the vector of a word and of the memory")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--single", action="store_true", help="single precision: faster, and equal to fewer digits")
    return parser.parse_args()


def read(args, rank, size, gather):
    """Return the share of one process of the text, and how many words there are; on all processes, or on none.

    ``gather`` returns a list with everybody's object: where one process cannot read the text, all end, and one says
    which and why.
    """
    if args.batch_size % size:
        text = (
            f"A total batch of {args.batch_size} cannot be shared out evenly to {size} processes; change --batch-size."
        )
        sys.exit(text if rank == 0 else 1)
    problem = text = None
    try:
        parts, words = of_ptb(Path(args.data)) if args.data else generated()
        share = slice(rank * args.batch_size // size, (rank + 1) * args.batch_size // size)
        columns = {part: in_columns(text, args.batch_size)[:, share] for part, text in parts.items()}
        text = SimpleNamespace(words=words, **columns)
    except DataError as error:
        problem = f"rank {rank} on {os.uname().nodename}: {error}"
    problems = [text for text in gather(problem) if text]
    if problems:
        if problem == problems[0]:
            print(problem, file=sys.stderr, flush=True)
        gather(None)  # with the first process that ends, the launcher ends the others; this one has spoken before
        sys.exit(1)
    return text


def of_ptb(folder):
    """Return the numbers of the words of both parts of the Penn Treebank, by part, and how many words there are."""
    known, texts = {}, {}
    for part in LENGTHS:
        path = folder / f"ptb.{part}.txt"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise DataError(
                f"{path} cannot be read ({problem}); --data takes a folder with PTB's text files."
            ) from None
        words = [word for line in lines for word in [*line.split(), "<eos>"]]
        texts[part] = torch.tensor([known.setdefault(word, len(known)) for word in words])
    return texts, len(known)


def generated():
    """Return text of a fixed seed, by part, and how many words there are."""
    chance = np.random.default_rng(SEED)
    successors = np.array([chance.permutation(WORDS)[: len(PROBABILITIES)] for _unused in range(WORDS)])
    texts = {}
    for part, length in LENGTHS.items():
        words = [0]
        for choice in chance.choice(len(PROBABILITIES), size=length - 1, p=PROBABILITIES):
            words.append(int(successors[words[-1], choice]))
        texts[part] = torch.tensor(words)
    return texts, WORDS


def in_columns(text, columns):
    """Cut a text into so many of equal length and put them side by side."""
    rows = len(text) // columns
    if rows < 2:
        raise DataError(f"a text of {len(text)} words is too short for {columns} columns; take a smaller --batch-size.")
    return text[: rows * columns].view(columns, rows).t().contiguous()


class Model(nn.Module):
    """Words to vectors to an LSTM's memory to the next word."""

    def __init__(self, words, width):
        """Begin with the same weights everywhere."""
        super().__init__()
        torch.manual_seed(SEED)
        self.vectors = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width)
        self.scores = nn.Linear(width, words)

    def forward(self, words, state):
        """Return scores of the next words and the state after them."""
        hidden, state = self.memory(self.vectors(words), state)
        return self.scores(hidden), tuple(part.detach() for part in state)


def losses(model, columns, window):
    """Yield the mean loss of one window of the text after the other, and over how many words it is the mean."""
    state = None
    for first in range(0, len(columns) - 1, window):
        wanted = columns[first + 1 : first + 1 + window]
        scores, state = model(columns[first : first + len(wanted)], state)
        yield nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()), wanted.numel()


@torch.no_grad()
def loss_and_words(model, columns, window):
    """Return the summed loss over the columns, and of how many words: a process's part of the perplexity."""
    parts = [(loss * number, number) for loss, number in losses(model, columns, window)]
    return torch.stack(
        [sum(loss for loss, _number in parts), torch.zeros_like(parts[0][0]) + sum(n for _loss, n in parts)]
    )


def perplexity(loss, words):
    """Return the perplexity of a loss that was summed over so many words."""
    return math.exp(loss / words)
