"""A small language model on generated text, the same for one process and for all ranks, so that losses can be compared.

The programs import this module by its bare name, because it lies in their folder. It needs torch, which they pass in.

The gradient of a step is the mean over all ranks, and each rank takes the mean over an equal part of one batch. That is
the mean over the batch, which one process computes alone. In float64 the two differ only by the order of additions. A
mean of 4096 terms in another order is off by about 4096 x 1.1e-16, and 100 steps add up to 5e-11. A rank whose
gradient is lost changes the third digit.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Callable, NamedTuple

import measure

SEED = 20240229
CONTEXT = 6  # characters that predict the next one
WIDTHS = (8, 32)  # of a character's vector and of the hidden layer
BATCH = 4096
BATCHES = 8  # in an epoch
STEPS = 20
HELD_OUT = 2048  # characters for the perplexity
RATE = 1.0
TOLERANCE = 1e-8  # leaves room for the model, which enlarges a difference
LEARNT_STEPS = 16  # steps after which the perplexity is far below half of the untrained model's
WORDS = (
    "the",
    "mesh",
    "of",
    "nodes",
    "adds",
    "all",
    "parts",
    "and",
    "each",
    "rank",
    "waits",
    "for",
    "its",
    "own",
    "ring",
)


class Course(NamedTuple):
    """What a training showed: the loss before each step, and the seconds of each step."""

    losses: list[float]
    seconds: list[float]

    @property
    def steady(self) -> list[float]:
        """The seconds of all steps but the first, in which memory is reserved and connections are made."""
        return self.seconds[1:] or self.seconds


class Text:
    """Generated text as numbers: words in an order that the word before decides most of the time."""

    def __init__(self, torch: Any, length: int) -> None:
        """Write the text, the same on every rank."""
        state, number, words = SEED, 0, []
        while len(words) < length:  # a word has two characters or more
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            number = (number * 7 + 3 + (state >> 61 == 0)) % len(WORDS)
            words.append(WORDS[number])
        text = " ".join(words)[:length]
        self.letters = sorted(set(" ".join(WORDS)))
        place = {letter: number for number, letter in enumerate(self.letters)}
        self.numbers = torch.tensor([place[letter] for letter in text])

    def samples(self, first: int, count: int) -> tuple[Any, Any]:
        """Return ``count`` contexts and what follows each."""
        windows = self.numbers[first : first + count + CONTEXT].unfold(0, CONTEXT + 1, 1)
        return windows[:, :CONTEXT], windows[:, CONTEXT]


class Trainer:
    """The same model, text and batches for one process and for all."""

    def __init__(self, torch: Any, device: Any, size: int, doing: Callable[[str], str]) -> None:
        """Write the text; a batch is the next multiple of the number of ranks.

        Args:
            torch: the module.
            device: where the model lies.
            size: how many ranks share a batch.
            doing: is told what the rank is busy with.
        """
        self.torch, self.device, self.size, self.doing = torch, device, size, doing
        self.batch = math.ceil(BATCH / size) * size
        self.text = Text(torch, self.batch * BATCHES + HELD_OUT + 2 * CONTEXT)

    def model(self) -> Any:
        """Return the model before any training, the same on every rank.

        It is computed in float64, because processors round differently and float32 would show it.
        """
        torch = self.torch
        torch.manual_seed(SEED)
        letters, (vector, hidden) = len(self.text.letters), WIDTHS
        return torch.nn.Sequential(
            torch.nn.Embedding(letters, vector, dtype=torch.float64),
            torch.nn.Flatten(),
            torch.nn.Linear(CONTEXT * vector, hidden, dtype=torch.float64),
            torch.nn.Tanh(),
            torch.nn.Linear(hidden, letters, dtype=torch.float64),
        ).to(self.device)

    def optimizer(self, model: Any) -> Any:
        """Return what moves a model's parameters."""
        return self.torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)

    def train(self, model: Any, optimizer: Any, part: tuple[int, int], steps: int, who: str) -> Course:
        """Train on a part of every batch.

        Args:
            model: of :meth:`model`, perhaps wrapped.
            optimizer: of :meth:`optimizer`, perhaps wrapped.
            part: which of how many equal parts.
            steps: batches; each comes again after an epoch.
            who: words that explain a hang.
        """
        course = Course([], [])
        rank, size = part
        share = self.batch // size
        for step in range(steps):
            began = time.perf_counter()
            epoch, number = divmod(step, BATCHES)
            self.doing(f"step {number} of epoch {epoch} of {who}")
            optimizer.zero_grad()
            loss = self.loss(model, number * self.batch + rank * share, share)
            loss.backward()
            optimizer.step()
            course.losses.append(loss.item())  # waits for a GPU
            course.seconds.append(time.perf_counter() - began)
        return course

    def loss(self, model: Any, first: int, count: int) -> Any:
        """Return the mean loss of a model on some samples."""
        contexts, targets = self.text.samples(first, count)
        return self.torch.nn.functional.cross_entropy(model(contexts.to(self.device)), targets.to(self.device))

    def first_gradient(self, rank: int) -> Any:
        """Return a fresh model and the loss of a rank's part of the first batch, which nothing has averaged yet."""
        model, share = self.model(), self.batch // self.size
        return model, self.loss(model, rank * share, share)

    def perplexity(self, model: Any) -> float:
        """Return how many letters the model is in doubt between, on text that it has not seen."""
        with self.torch.no_grad():
            return math.exp(self.loss(model, self.batch * BATCHES + CONTEXT, HELD_OUT).item())


def told_steps(steps: int) -> list[int]:
    """Return the steps whose losses are compared: the first, one in the middle, and the last."""
    return sorted({0, steps // 2, steps - 1})


def say_times(rank: Any, backend: str, together: list[float], alone: list[float]) -> None:
    """Print how long steps took: of all ranks together, each step that of the slowest, and of one process.

    Args:
        rank: ``rank_program.Rank`` of the one rank that prints it.
        backend: what carried the gradients.
        together: seconds.
        alone: seconds.
    """
    for operation, seconds in (("training_step", together), ("single_process_step", alone)):
        measure.say(
            rank.voice, seconds, quantity="time", unit="s", better="lower", operation=operation, backend=backend
        )


def add_options(parser: Any) -> None:
    """Add what a training can be told."""
    parser.add_argument("--steps", type=int, default=STEPS, help="of the training")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="by which a loss may miss one process's")


if __name__ == "__main__":
    sys.exit("This is a module; start one of the programs beside it.")
