"""Suspects: a whole training set, scored class by class once an epoch, remembered and ranked."""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from randeigen.errors import BadFile, BadFraction, BadParameter
from randeigen.pipeline import checked_seed
from randeigen.rows.write import replacing
from randeigen.torch.gram import gram
from randeigen.torch.labelled_pairs import batch_of, labels_of
from randeigen.torch.suspicion_score import robust_z_score, suspicion_scores
from randeigen.types import Progress

GROUP_SIZE = 800  # examples scored together; their Gram matrix holds the square of it
SCORE_DECAY = 0.5  # weight of an earlier judgement relative to the one after it
MAX_SCORE = 4.0  # typical deviations; at most 2·eps of all examples, of higher scores, are left out
EARLY_JUDGEMENTS = 3  # of a model that knows little: these leave out the 2·eps worst, whatever their scores


class Suspect(NamedTuple):
    """One line of the report: an example, its score and its weight."""

    example: int  # its index in the data set
    label: Any
    score: float  # in typical deviations above the median, over epochs
    weight: float


class Suspects:
    """Judges a whole training set while it is trained on, and leaves suspicious examples out.

    Once an epoch, `judge` scores the examples of each label by their gradients: suspicious are those whose
    neighbours have high losses and which are far out along the top direction. Scores are averaged over
    epochs. Holds a few numbers per example and, while it judges, the Gram matrix of one group.

    Parameters:
        dataset: gives (input, label) by index and has a length. An input that is a dict is given to the model
            as keyword arguments.
        eps: the fraction of examples that may be poisoned, in [0, 0.5). At most 2·eps are left out, and
            never more than half.
        f: their number, in place of `eps`.
        labels: (n,) one class per example. By default the data set's `targets` or `labels`, the last tensor
            of a TensorDataset, or what reading the data set once gives.
        group: how many examples are scored together: lower it where the model's activations of 800 do not
            fit into memory.
        seed: makes the judgements reproducible.

    Raises:
        BadFraction: `eps` or `f` is out of range, or not exactly one of them is given.
        BadParameter: `dataset`, `labels`, `group` or `seed` cannot be used.

    Examples:
        >>> import torch, randeigen.torch
        >>> from torch.utils.data import TensorDataset
        >>> x = torch.randn(60, 4)
        >>> dataset = TensorDataset(x, (x[:, 0] > 0).long())
        >>> model, criterion = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> suspects = randeigen.torch.Suspects(dataset, eps=0.05)
        >>> for epoch in range(2):
        ...     for x, y, index in suspects.loader(batch_size=20):  # without those left out so far
        ...         optimizer.zero_grad()
        ...         criterion(model(x), y).mean().backward()
        ...         optimizer.step()
        ...     weights = suspects.judge(model, criterion)
        >>> len(suspects.report()), int((weights == 0).sum())
        (60, 6)
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        eps: float | None = None,
        *,
        f: int | None = None,
        labels: Any = None,
        group: int = GROUP_SIZE,
        seed: int | None = None,
    ) -> None:
        if group < 2:
            raise BadParameter(
                f"group={group}; give how many examples to judge together, such as {GROUP_SIZE}."
            )
        self.dataset, self.group = dataset, group
        self.labels = labels_of(dataset, labels)
        self.n = len(self.labels)
        self.eps, self._most = _assumed(eps, f, self.n)
        self.judgements = 0
        self.weights = torch.ones(self.n)  # 0 for those left out, for a weighted loss or a sampler
        self.seed = secrets.randbits(63) if seed is None else checked_seed(seed)
        self._score_sums = torch.zeros(self.n, dtype=torch.float64)
        self._score_weight = 0.0  # of the judgements in the sums, together

    @property
    def scores(self) -> Tensor:
        """(n,) typical deviations above the median, over epochs; inf where nothing can be measured."""
        return self._score_sums / self._score_weight if self._score_weight else self._score_sums

    def judge(
        self,
        model: nn.Module,
        criterion: Callable[[Any, Any], Tensor],
        *,
        progress: Progress | None = None,
    ) -> Tensor:
        """Score every example by its gradient for the model as it is, and set `weights`; call once an epoch.

        The model is judged in eval mode and left as it was.

        Parameters:
            model: as it is being trained.
            criterion: `criterion(model(x), y)` is one loss per example (`reduction="none"`); it is
                `model(**x)` where x is a dict.
            progress: called with "judging", the number of examples done and the number of all.

        Returns:
            (n,) the new `weights`: 0 for those left out, 1 for the others.

        Raises:
            BadModel: the losses are no vector, or the model cannot be taken apart example by example.
        """
        measured = torch.zeros(2, self.n, dtype=torch.float64)
        done, generator = 0, torch.Generator().manual_seed(self.seed + self.judgements)
        with _in_eval_mode(model):
            for indices in self._groups():
                measured[:, indices] = self._score_group(model, criterion, indices, generator)
                done += len(indices)
                if progress:
                    progress("judging", done, self.n)
        is_known = measured.isfinite().all(0)
        now = torch.full((self.n,), torch.inf, dtype=torch.float64)
        now[is_known] = robust_z_score(measured[0, is_known]) + robust_z_score(measured[1, is_known])
        self._score_sums = SCORE_DECAY * self._score_sums + now
        self._score_weight = SCORE_DECAY * self._score_weight + 1
        self.judgements += 1
        self.weights = self._weights_from_scores()
        return self.weights

    def ranking(self) -> NDArray[np.intp]:
        """All indices, the most suspicious first."""
        return np.argsort(-self.scores.numpy(), kind="stable")

    def report(self) -> list[Suspect]:
        """One line per example, the most suspicious first."""
        scores, weights = self.scores.tolist(), self.weights.tolist()
        return [Suspect(i, self.labels[i].item(), scores[i], weights[i]) for i in self.ranking().tolist()]

    table = report  # the name until 0.1

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a file, whole or not at all."""
        text = io.StringIO()
        csv.writer(text).writerows([Suspect._fields, *self.report()])
        with replacing(path) as file:
            file.write(text.getvalue().encode())

    def loader(self, batch_size: int = 128, **options: Any) -> DataLoader[Any]:
        """Shuffled batches (x, y, index) of the examples not left out; `options` are the DataLoader's."""
        kept = torch.nonzero(self.weights > 0).flatten().tolist()
        return DataLoader(_WithIndex(self.dataset, kept), batch_size, **{"shuffle": True, **options})

    def state_dict(self) -> dict[str, Tensor]:
        """All that is remembered, for a checkpoint."""
        counts = torch.tensor([self._score_weight, self.judgements], dtype=torch.float64)
        return {"sums": self._score_sums, "weights": self.weights, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint; `BadFile` where it is one of another data set."""
        missing = [name for name in self.state_dict() if name not in state]
        if missing:
            raise BadFile(
                f"this is no memory of Suspects: it lacks {', '.join(missing)}; give its state_dict."
            )
        if len(state["sums"]) != self.n:
            raise BadFile(f"this is the memory of {len(state['sums'])} examples; the data set has {self.n}.")
        self._score_sums, self.weights = state["sums"].cpu().clone(), state["weights"].cpu().clone()
        self._score_weight, self.judgements = float(state["counts"][0]), int(state["counts"][1])

    def _groups(self) -> Iterator[NDArray[np.intp]]:
        """Indices of examples of one label, shuffled anew each time, in groups of about equal size."""
        rng = np.random.default_rng([self.seed, self.judgements])
        for label in np.unique(self.labels):
            members = rng.permutation(np.flatnonzero(self.labels == label))
            yield from np.array_split(members, -(-len(members) // self.group))

    def _score_group(
        self,
        model: nn.Module,
        criterion: Callable[[Any, Any], Tensor],
        indices: NDArray[np.intp],
        generator: torch.Generator,
    ) -> Tensor:
        x, y = batch_of(self.dataset, indices, next(model.parameters()).device)
        losses = criterion(model(**x) if isinstance(x, dict) else model(x), y)
        products, losses = gram(losses, model), losses.detach()
        usable = torch.isfinite(products.diagonal()) & torch.isfinite(losses)
        scores = torch.full((2, len(indices)), torch.inf, dtype=torch.float64)
        if not bool(usable.all()):
            products, losses = products[usable][:, usable], losses[usable]
        scores[:, usable.cpu()] = suspicion_scores(products, losses, generator).cpu()
        return scores

    def _weights_from_scores(self) -> Tensor:
        worst = torch.from_numpy(self.ranking())[: self._most]
        if self.judgements > EARLY_JUDGEMENTS:
            worst = worst[self.scores[worst] > MAX_SCORE]
        weights = torch.ones(self.n)
        weights[worst] = 0
        weights[self.scores.isinf()] = 0  # their losses or gradients are not finite: none can be trained on
        return weights


class _WithIndex(Dataset[Any]):
    """Some examples of a data set, each with its index there."""

    def __init__(self, dataset: Any, kept: list[int]) -> None:
        self.dataset, self.kept = dataset, kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, position: int) -> tuple[Any, ...]:
        index = self.kept[position]
        return (*self.dataset[index], index)


def _assumed(eps: float | None, f: int | None, n: int) -> tuple[float, int]:
    """The fraction that may be poisoned, and how many examples are left out at most."""
    if (eps is None) == (f is None):
        raise BadFraction(
            "give exactly one of eps (the fraction of examples that may be poisoned) and f (their number); "
            f"found eps={eps} and f={f}."
        )
    if f is not None:
        if not isinstance(f, (int, np.integer)) or not 0 <= 2 * f < n:
            raise BadFraction(f"f={f}; give how many of the {n} examples may be poisoned, fewer than half.")
        return f / n, int(min(2 * f, n // 2))
    if not isinstance(eps, (int, float, np.floating)) or not 0 <= eps < 0.5:
        raise BadFraction(f"eps={eps}; give the fraction of examples that may be poisoned, in [0, 0.5).")
    return float(eps), int(min(2 * eps, 0.5) * n)


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """No dropout, no batch statistics; every module goes back to the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
