"""A whole training set under suspicion: judged class by class once an epoch, remembered, ranked."""

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
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from randeigen.errors import BadFraction, BadRows
from randeigen.pipeline import checked_seed
from randeigen.rows.write import replacing
from randeigen.torch.gram import gram
from randeigen.torch.suspicion_score import robust_z_score, suspicion_scores
from randeigen.types import Progress

GROUP_SIZE = 800  # examples judged together; their table holds the square of it
MEMORY_OF_SCORES = 0.5  # what an earlier judgement counts beside the next
# An example is left out if its score, in typical deviations, is above this, and never more than twice as
# many as were feared. The first judgements, of a model that knows little, do not wait for it.
LIMIT = 4.0
EARLY = 3


class Suspect(NamedTuple):
    """A line of the report."""

    example: int  # its index in the data set
    label: Any
    score: float  # typical deviations above the middle
    weight: float


class Suspects:
    """Judges a training set while it is trained on; a fraction `eps` of it may be poisoned.

        suspects = randeigen.torch.Suspects(dataset, eps=0.05)
        for epoch in range(epochs):
            for x, y, i in suspects.loader(batch_size=128):     # without those left out so far
                criterion(model(x), y).mean().backward(); optimizer.step(); optimizer.zero_grad()
            suspects.judge(model, criterion)                     # criterion: reduction="none"
        suspects.to_csv("suspects.csv")                          # most suspicious first

    `dataset` gives (input, label) by index. Labels are found in it (`targets`, `labels`, the last tensor of
    a TensorDataset, else by reading it once) unless given. Holds a few numbers per example and, while it
    judges, the table of one group: lower `group` where the model's activations of 800 examples do not fit.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        eps: float,
        *,
        labels: Any = None,
        group: int = GROUP_SIZE,
        seed: int | None = None,
    ) -> None:
        if not 0 <= eps < 0.5:
            raise BadFraction(f"eps={eps}; give the fraction of examples you fear, in [0, 0.5).")
        if group < 2:
            raise BadFraction(
                f"group={group}; give how many examples to judge together, such as {GROUP_SIZE}."
            )
        self.dataset, self.eps, self.group = dataset, eps, group
        self.labels = _labels(dataset, labels)
        self.n = len(self.labels)
        self.judgements = 0
        self.weights = torch.ones(self.n)  # 0 for those left out, for a weighted loss or a sampler
        self.seed = secrets.randbits(63) if seed is None else checked_seed(seed)
        self._sums, self._mass = torch.zeros(self.n, dtype=torch.float64), 0.0

    @property
    def scores(self) -> Tensor:
        """(n,) typical deviations above the middle, over epochs; inf where nothing can be measured."""
        return self._sums / self._mass if self._mass else self._sums

    def judge(
        self,
        model: nn.Module,
        criterion: Callable[[Any, Any], Tensor],
        *,
        progress: Progress | None = None,
    ) -> Tensor:
        """Look at every example's gradient as the model is now, and set `weights` anew; call once an epoch.

        `criterion(model(x), y)` is one loss per example. The model is judged in eval mode and left as it was.
        """
        found = torch.zeros(2, self.n, dtype=torch.float64)
        done, coins = 0, torch.Generator().manual_seed(self.seed + self.judgements)
        with _as_judged(model):
            for places in self._groups():
                found[:, places] = self._look(model, criterion, places, coins)
                done += len(places)
                if progress:
                    progress("judging", done, self.n)
        known = found.isfinite().all(0)
        now = torch.full((self.n,), torch.inf, dtype=torch.float64)
        now[known] = robust_z_score(found[0, known]) + robust_z_score(found[1, known])
        self._sums, self._mass = MEMORY_OF_SCORES * self._sums + now, MEMORY_OF_SCORES * self._mass + 1
        self.judgements += 1
        self.weights = self._weighed()
        return self.weights

    def ranking(self) -> NDArray[np.intp]:
        """All indices, the most suspicious first."""
        return np.argsort(-self.scores.numpy(), kind="stable")

    def table(self) -> list[Suspect]:
        """One line per example, the most suspicious first."""
        scores, weights = self.scores.tolist(), self.weights.tolist()
        return [Suspect(i, self.labels[i].item(), scores[i], weights[i]) for i in self.ranking().tolist()]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """The same lines as a file, whole or not at all."""
        text = io.StringIO()
        csv.writer(text).writerows([Suspect._fields, *self.table()])
        with replacing(path) as file:
            file.write(text.getvalue().encode())

    def loader(self, batch_size: int = 128, **options: Any) -> DataLoader[Any]:
        """Shuffled batches (x, y, index) of the examples not left out; `options` are the DataLoader's."""
        kept = torch.nonzero(self.weights > 0).flatten().tolist()
        return DataLoader(_Numbered(self.dataset, kept), batch_size, **{"shuffle": True, **options})

    def state_dict(self) -> dict[str, Tensor]:
        """All that is remembered, for a checkpoint."""
        counts = torch.tensor([self._mass, self.judgements], dtype=torch.float64)
        return {"sums": self._sums, "weights": self.weights, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        if len(state["sums"]) != self.n:
            raise BadRows(f"this is the memory of {len(state['sums'])} examples; the data set has {self.n}.")
        self._sums, self.weights = state["sums"].cpu().clone(), state["weights"].cpu().clone()
        self._mass, self.judgements = float(state["counts"][0]), int(state["counts"][1])

    def _groups(self) -> Iterator[NDArray[np.intp]]:
        """Examples of one label, shuffled anew each time, in groups of about equal size."""
        rng = np.random.default_rng([self.seed, self.judgements])
        for label in np.unique(self.labels):
            mine = rng.permutation(np.flatnonzero(self.labels == label))
            yield from np.array_split(mine, -(-len(mine) // self.group))

    def _look(self, model: Any, criterion: Any, places: NDArray[np.intp], coins: torch.Generator) -> Tensor:
        x, y = _batch(self.dataset, places, next(model.parameters()).device)
        losses = criterion(model(x), y)
        products, seen = gram(losses, model), losses.detach()
        sound = torch.isfinite(products.diagonal()) & torch.isfinite(seen)
        out = torch.full((2, len(places)), torch.inf, dtype=torch.float64)
        if not bool(sound.all()):
            products, seen = products[sound][:, sound], seen[sound]
        out[:, sound.cpu()] = suspicion_scores(products, seen, coins).cpu()
        return out

    def _weighed(self) -> Tensor:
        most = int(min(2 * self.eps, 0.5) * self.n)
        worst = torch.from_numpy(self.ranking())[:most]
        if self.judgements > EARLY:
            worst = worst[self.scores[worst] > LIMIT]
        weights = torch.ones(self.n)
        weights[worst] = 0
        weights[self.scores.isinf()] = 0  # what cannot be measured cannot be learnt from
        return weights


class _Numbered(Dataset[Any]):
    """Some examples of a data set, each with its index there."""

    def __init__(self, dataset: Any, kept: list[int]) -> None:
        self.dataset, self.kept = dataset, kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        index = self.kept[place]
        return (*self.dataset[index], index)


def _labels(dataset: Any, given: Any) -> NDArray[Any]:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        raise BadRows(
            f"dataset must give (input, label) by index and have a length, found {type(dataset).__name__}; "
            "wrap tensors in torch.utils.data.TensorDataset(x, y)."
        )
    for name in ("targets", "labels"):
        given = getattr(dataset, name, None) if given is None else given
    if given is None and isinstance(dataset, TensorDataset):
        given = dataset.tensors[-1]
    if given is None:
        given = [dataset[i][1] for i in range(len(dataset))]
    labels = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if labels.shape != (len(dataset),):
        raise BadRows(
            f"labels have shape {labels.shape}, but the data set has {len(dataset)} examples; give one label "
            "for each (for targets that are no classes: labels=[0] * len(dataset) judges all together)."
        )
    return labels


def _batch(dataset: Any, places: NDArray[np.intp], device: Any) -> tuple[Any, Any]:
    if isinstance(dataset, TensorDataset):
        parts = dataset[torch.from_numpy(places)]
    else:
        parts = default_collate([dataset[i] for i in places.tolist()])
    if len(parts) != 2:
        raise BadRows(f"the data set gives {len(parts)} parts for an example; give (input, label).")
    return parts[0].to(device), parts[1].to(device)


@contextmanager
def _as_judged(model: nn.Module) -> Iterator[None]:
    """In eval mode: no dropout, no batch statistics; every module goes back to the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
