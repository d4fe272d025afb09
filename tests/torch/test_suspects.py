"""`Suspects` finds poison, forgives what is merely hard, and takes a data set as people have it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import randeigen.torch
from randeigen.errors import BadFile, BadModel, BadParameter
from randeigen.torch import Suspects
from randeigen.torch.suspicion_score import (
    DIRECTIONS,
    logit_loss,
    robust_z_score,
    suspicion_scores,
    top_principal_coordinates,
)

criterion = nn.CrossEntropyLoss(reduction="none")


def clouds(n: int = 600, poison: int = 30, seed: int = 0) -> tuple[Any, Any, Any]:
    """Three classes on a circle; poison is a clump of class 0's neighbourhood labelled 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    angle = 2 * np.pi * y / 3
    x = 3 * np.stack([np.cos(angle), np.sin(angle), 0 * angle, 0 * angle], 1) + rng.standard_normal((n, 4))
    x[:poison] = [3.0, -0.5, 2.0, 0.0] + 0.3 * rng.standard_normal((poison, 4))
    y[:poison] = 1
    order = rng.permutation(n)
    mask = np.arange(n) < poison
    return (
        torch.tensor(x[order], dtype=torch.float32),
        torch.tensor(y[order]),
        torch.tensor(mask[order]),
    )


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def train(model: Any, suspects: Suspects, epochs: int, judged: bool = True) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        with torch.random.fork_rng():
            torch.manual_seed(epoch)
            for x, y, _ in suspects.loader(batch_size=32):
                optimizer.zero_grad()
                criterion(model(x), y).mean().backward()
                optimizer.step()
        if judged:
            suspects.judge(model, criterion)


@pytest.fixture(scope="module")
def judged() -> tuple[Any, Suspects, Any]:
    x, y, poison = clouds()
    model, suspects = net(), Suspects(TensorDataset(x, y), eps=0.05, seed=0)
    train(model, suspects, 6)
    return model, suspects, poison


def test_poison_is_ranked_first(judged: tuple[Any, Suspects, Any]) -> None:
    _, suspects, poison = judged
    found = poison[torch.from_numpy(suspects.ranking()[: int(poison.sum())])]
    assert float(found.double().mean()) > 0.9


def test_poison_is_left_out_and_honest_examples_stay(judged: tuple[Any, Suspects, Any]) -> None:
    _, suspects, poison = judged
    assert float(suspects.weights[poison].mean()) < 0.1
    assert float(suspects.weights[~poison].mean()) > 0.9
    assert int((suspects.weights == 0).sum()) <= 2 * 0.05 * suspects.n


def test_the_model_does_not_learn_what_is_left_out(judged: tuple[Any, Suspects, Any]) -> None:
    model, suspects, poison = judged
    believer, idle = net(), Suspects(suspects.dataset, eps=0.05, seed=0)
    train(believer, idle, 6, judged=False)
    x, y = suspects.dataset.tensors  # type: ignore[attr-defined]
    fooled = {
        name: float((m(x[poison]).argmax(1) == y[poison]).double().mean())
        for name, m in (("judged", model), ("believer", believer))
    }
    assert fooled["judged"] < fooled["believer"] / 4


def test_ranking_holds_every_example_once_by_falling_score(judged: tuple[Any, Suspects, Any]) -> None:
    suspects = judged[1]
    ranking = suspects.ranking()
    assert sorted(ranking) == list(range(suspects.n))
    assert (np.diff(suspects.scores.numpy()[ranking]) <= 0).all()


def test_the_csv_holds_the_same_as_the_report(judged: tuple[Any, Suspects, Any], tmp_path: Path) -> None:
    suspects = judged[1]
    suspects.to_csv(tmp_path / "suspects.csv")
    lines = list(csv.DictReader((tmp_path / "suspects.csv").read_text().splitlines()))
    assert [int(line["example"]) for line in lines] == suspects.ranking().tolist()
    for line, suspect in zip(lines, suspects.report(), strict=True):
        assert float(line["score"]) == suspect.score
        assert int(line["label"]) == suspect.label == int(suspects.labels[suspect.example])
        assert float(line["weight"]) == suspect.weight


def test_batches_name_their_examples_and_skip_those_left_out(judged: tuple[Any, Suspects, Any]) -> None:
    suspects = judged[1]
    x, y = suspects.dataset.tensors  # type: ignore[attr-defined]
    seen = []
    for a, b, i in suspects.loader(batch_size=50):
        assert torch.equal(a, x[i])
        assert torch.equal(b, y[i])
        seen += i.tolist()
    assert sorted(seen) == torch.nonzero(suspects.weights).flatten().tolist()


class Plain(Dataset[Any]):
    """A data set as people write them: no labels to be found but by reading."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.x[index], int(self.y[index])


class Dicts(Plain):
    """As Hugging Face has them."""

    def __getitem__(self, index: int) -> Any:
        return {"pixels": self.x[index], "label": self.y[index]}


class Targeted(Plain):
    """As torchvision has them."""

    @property
    def targets(self) -> list[int]:
        return [int(label) for label in self.y]


@pytest.mark.parametrize("form", [Plain, Targeted, TensorDataset])
def test_the_form_of_the_data_set_changes_nothing(form: Any) -> None:
    x, y, _ = clouds(200, 10)
    one, two = Suspects(TensorDataset(x, y), 0.1, seed=1), Suspects(form(x, y), 0.1, seed=1, labels=None)
    model = net()
    one.judge(model, criterion)
    two.judge(model, criterion)
    assert torch.equal(one.scores, two.scores)


def test_inputs_in_a_dict_are_the_keyword_arguments_of_the_model() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, *, pixels: Any) -> Any:
            return self.inner(pixels)

    x, y, _ = clouds(120, 6)
    pairs: Any = [({"pixels": e["pixels"]}, e["label"]) for e in (Dicts(x, y)[i] for i in range(120))]
    one, two = Suspects(TensorDataset(x, y), 0.1, seed=1), Suspects(pairs, 0.1, seed=1)
    one.judge(net(), criterion)
    two.judge(Keyword(), criterion)
    assert torch.equal(one.scores, two.scores)


def test_targets_of_a_regression_are_judged_together_where_asked() -> None:
    x, _, _ = clouds(120, 6)
    data = TensorDataset(x, x[:, 0])
    suspects = Suspects(data, 0.1, labels=[0] * 120)
    suspects.judge(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), nn.MSELoss(reduction="none"))
    assert int((suspects.weights == 0).sum()) == 24
    assert Suspects(TensorDataset(x, (x[:, 0] > 0).float()), 0.1).n == 120, "0.0 and 1.0 are classes"


def test_f_is_a_number_of_examples() -> None:
    x, y, _ = clouds(120, 6)
    suspects = Suspects(TensorDataset(x, y), f=7)
    assert suspects.eps == 7 / 120
    suspects.judge(net(), criterion)
    assert int((suspects.weights == 0).sum()) == 14


def test_no_more_than_half_is_left_out() -> None:
    x, y, _ = clouds(120, 6)
    for suspects in (Suspects(TensorDataset(x, y), f=54), Suspects(TensorDataset(x, y), 0.45)):
        suspects.judge(net(), criterion)
        assert int((suspects.weights == 0).sum()) == 60


def test_a_run_that_is_resumed_remembers() -> None:
    x, y, _ = clouds(200, 10)
    one, two = (Suspects(TensorDataset(x, y), 0.1, seed=1) for _ in range(2))
    model = net()
    one.judge(model, criterion)
    two.load_state_dict(one.state_dict())
    assert torch.equal(two.weights, one.weights)
    one.judge(model, criterion)
    two.judge(model, criterion)
    assert torch.equal(one.scores, two.scores)
    with pytest.raises(BadFile, match="memory of 200 examples"):
        Suspects(TensorDataset(x[:50], y[:50]), 0.1).load_state_dict(one.state_dict())
    with pytest.raises(BadFile, match="no memory of Suspects: it lacks sums"):
        two.load_state_dict(model.state_dict())


def test_judging_leaves_model_and_gradients_as_they_were() -> None:
    x, y, _ = clouds(120, 6)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Suspects(TensorDataset(x, y), 0.1).judge(model, criterion)
    assert model.training
    assert not model[2].training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_example_that_cannot_be_measured_is_left_out_and_spoils_nothing() -> None:
    x, y, _ = clouds(200, 0)
    clean = Suspects(TensorDataset(x, y), 0.1, seed=1)
    clean.judge(net(), criterion)
    x = x.clone()
    x[[3, 77]] = torch.tensor([[torch.nan], [torch.inf]])
    suspects = Suspects(TensorDataset(x, y), 0.1, seed=1)
    suspects.judge(net(), criterion)
    assert set(suspects.ranking()[:2].tolist()) == {3, 77}
    assert suspects.weights[[3, 77]].tolist() == [0.0, 0.0]
    rest = [i for i in range(200) if i not in (3, 77)]
    assert bool(suspects.scores[rest].isfinite().all())


def test_nothing_is_left_out_at_eps_0() -> None:
    x, y, _ = clouds(120, 6)
    suspects = Suspects(TensorDataset(x, y), 0.0)
    suspects.judge(net(), criterion)
    assert bool((suspects.weights == 1).all())


def test_scores_do_not_depend_on_the_scale_of_gradients() -> None:
    rng = np.random.default_rng(0)
    rows = torch.tensor(rng.standard_normal((60, 5)))
    losses = torch.tensor(rng.random(60))
    one, two = (
        suspicion_scores(scale * rows @ rows.T, losses, torch.Generator().manual_seed(0))
        for scale in (1.0, 1e-12)
    )
    assert torch.allclose(one, two)


def test_the_top_direction_is_that_of_the_covariance() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 30)) * np.linspace(3, 0.1, 30)
    found = top_principal_coordinates(torch.tensor(rows @ rows.T), torch.Generator().manual_seed(0)).numpy()
    centred = rows - rows.mean(0)
    values = np.linalg.svd(centred, compute_uv=False)[:DIRECTIONS]
    assert np.allclose(np.sort((found**2).sum(0))[::-1][:3], values[:3] ** 2, rtol=0.05)


def test_a_crowd_of_badly_learnt_neighbours_stands_out_and_a_lone_hard_example_does_not() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 6))
    rows[180:, 5] += 6
    losses = np.full(200, 0.01)
    losses[180:] = 2.0  # a crowd
    losses[0] = 2.0  # and one on its own
    near, _ = suspicion_scores(
        torch.tensor(rows @ rows.T), torch.tensor(losses), torch.Generator().manual_seed(0)
    )
    crowd = float(near[180:].median())
    assert int((near[:180] > crowd).sum()) < 5
    assert float(near[0]) < crowd


def test_the_logit_loss_is_the_log_odds_against_the_label() -> None:
    p = torch.tensor([0.01, 0.5, 0.9], dtype=torch.float64)
    assert torch.allclose(logit_loss(-p.log()), ((1 - p) / p).log())
    assert bool(logit_loss(torch.tensor([0.0, 1e-30, 80.0, 1e4])).isfinite().all())


def test_a_minority_does_not_set_the_scale() -> None:
    values = torch.cat([torch.linspace(-1, 1, 101), torch.full((20,), 1e6)]).double()
    assert float(robust_z_score(values)[:101].abs().max()) < 5
    assert robust_z_score(torch.zeros(5)).tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: Suspects(TensorDataset(x, y), 0.5), "eps=0.5"),
        (lambda x, y: Suspects(TensorDataset(x, y), -0.1), "eps=-0.1"),
        (lambda x, y: Suspects(TensorDataset(x, y), 0.1, group=1), "group=1"),
        (lambda x, y: Suspects(TensorDataset(x, y), 0.1, labels=[1, 2]), "labels have shape"),
        (lambda x, y: Suspects(TensorDataset(x, y), 0.1, seed=-1), "seed=-1"),
        (lambda x, y: Suspects(TensorDataset(x[:0], y[:0]), 0.1), "dataset must give"),
        (lambda x, y: Suspects(7, 0.1), "dataset must give"),  # type: ignore[arg-type]
        (
            lambda x, y: Suspects(TensorDataset(x, y), 0.1).judge(net(), nn.CrossEntropyLoss()),
            'reduction="none"',
        ),
        (lambda x, y: Suspects(TensorDataset(x, x, y), 0.1), "gives 3 parts"),
        (lambda x, y: Suspects(TensorDataset(x, y)), "exactly one of eps"),
        (lambda x, y: Suspects(TensorDataset(x, y), 0.1, f=3), "exactly one of eps"),
        (lambda x, y: Suspects(TensorDataset(x, y), f=30), "f=30; give how many of the 60 examples"),
        (lambda x, y: Suspects(TensorDataset(x, y), "a few"), "eps=a few"),  # type: ignore[arg-type]
        (lambda x, y: Suspects(Dicts(x, y), 0.1), "keys 'pixels', 'label'.*keyword arguments of the model"),
        (lambda x, y: Suspects(Dicts(x, y), 0.1, labels=y), "keys 'pixels', 'label'"),
        (lambda x, y: Suspects({"x": x, "y": y}, 0.1), "dict without an entry 0"),  # type: ignore[arg-type]
        (lambda x, y: Suspects(list(x), 0.1), "is a Tensor, without a label"),  # type: ignore[arg-type]
        (lambda x, y: Suspects(TensorDataset(x, x[:, 0]), 0.1), r"60 different.*regression.*labels=\[0\]"),
        (lambda x, y: Suspects(TensorDataset(x, y), 0.1, labels=[None] * 60), "NoneType"),
    ],
)
def test_mistakes_are_explained(make: Any, message: str) -> None:
    x, y, _ = clouds(60, 3)
    with pytest.raises((BadParameter, BadModel), match=message):
        make(x, y)


def test_the_report_is_still_found_under_its_old_name() -> None:
    x, y, _ = clouds(60, 3)
    suspects = Suspects(TensorDataset(x, y), 0.1)
    assert suspects.table() == suspects.report()


def test_it_is_where_people_look_for_it() -> None:
    assert randeigen.torch.Suspects is Suspects
    assert {"Suspects", "Suspect"} <= set(randeigen.torch.__all__)
