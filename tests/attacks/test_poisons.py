"""Poison is what it says: counted, shuffled, within its bounds, and after what it says it is after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from randeigen.attacks import Clean, GradientMatching, LabelFlipPoison, Subpopulation, Trigger
from randeigen.attacks.base import Poisoned, PoisoningContext
from randeigen.attacks.poisons.subpopulation import k_means
from randeigen.errors import BadParameter

CLASSES = 3


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )


def images(rng: np.random.Generator, many: int) -> tuple[Any, Any]:
    """Each class is bright in rows of its own, so that classes are far apart."""
    labels = rng.integers(0, CLASSES, many)
    pixels = 0.2 * rng.random((many, 1, 4, 4))
    pixels[np.arange(many), 0, labels] += 0.7
    return torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)


def source(eps: float = 0.2, seed: int = 0) -> PoisoningContext:
    rng = np.random.default_rng(seed)
    surrogate = model()
    data = images(rng, 300)
    optimizer = torch.optim.Adam(surrogate.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(surrogate(data[0]), data[1]).backward()
        optimizer.step()
    return PoisoningContext(
        victim=images(rng, 300),
        auxiliary=data,
        test=images(rng, 200),
        surrogate=lambda: surrogate,
        classes=CLASSES,
        low=0.0,
        high=1.0,
        eps=eps,
        rng=np.random.default_rng([seed, 1]),
    )


def contains(haystack: Any, needles: Any) -> bool:
    """Whether every needle is one of the images."""
    apart = torch.cdist(needles.flatten(1).double(), haystack.flatten(1).double())
    return bool((apart.min(1).values < 1e-5).all())


def is_spread_out(found: Poisoned) -> bool:
    """No half of the set holds nearly all of the poison."""
    half = len(found.poison) // 2
    return 0.2 < float(found.poison[:half].sum() / found.poison.sum()) < 0.8


def test_no_attack_leaves_the_same_examples_in_another_order() -> None:
    asked = source()
    found = Clean().poison(asked)
    assert not found.poison.any()
    assert found.success_sets == {}
    assert not torch.equal(found.images, asked.victim[0])
    assert contains(asked.victim[0], found.images)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.05])
def test_flipped_labels_are_counted_and_wrong(share: float) -> None:
    asked = source()
    found = LabelFlipPoison(share).poison(asked)
    assert int(found.poison.sum()) == int(share * 300)
    truth = {tuple(x.flatten().tolist()): int(y) for x, y in zip(*asked.victim, strict=True)}
    true_labels = torch.tensor([truth[tuple(x.flatten().tolist())] for x in found.images])
    assert torch.equal(found.labels[found.poison], CLASSES - 1 - true_labels[found.poison])
    assert torch.equal(found.labels[~found.poison], true_labels[~found.poison])


def test_a_trigger_is_stamped_on_poison_and_trials_alone() -> None:
    asked = source()
    found = Trigger(0.05, target=1).poison(asked)
    assert int(found.poison.sum()) == 15
    assert is_spread_out(found)
    assert bool((found.labels[found.poison] == 1).all())
    assert bool((found.images[found.poison][:, 0, :3, :3] == asked.high).all())
    assert contains(asked.victim[0], found.images[~found.poison])
    stamped, wanted = found.success_sets["asr"]
    assert len(stamped) == int((asked.test[1] != 1).sum())
    assert bool((wanted == 1).all())
    assert bool((stamped[:, 0, :3, :3] == asked.high).all())


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_subpopulation_is_one_cluster_with_one_wrong_label(alpha: float) -> None:
    asked = source()
    found = Subpopulation(alpha, clusters=12).poison(asked)
    poison = found.images[found.poison]
    assert len(found.labels) == 300 + len(poison)
    assert contains(asked.auxiliary[0], poison)
    assert contains(asked.victim[0], found.images[~found.poison])
    (label,) = found.labels[found.poison].unique().tolist()
    truth = {tuple(x.flatten().tolist()): int(y) for x, y in zip(*asked.auxiliary, strict=True)}
    true_labels = np.array([truth[tuple(x.flatten().tolist())] for x in poison])
    assert (true_labels != label).all(), "a cluster has one class here and lacks the label"
    assert is_spread_out(found)
    trials, wanted = found.success_sets["asr"]
    assert bool((wanted == label).all())
    near = torch.cdist(trials.flatten(1), poison.flatten(1)).min(1).values
    others = torch.cdist(asked.test[0].flatten(1), poison.flatten(1)).min(1).values
    assert float(near.mean()) < float(others.mean()) / 2


def test_the_poison_of_a_cluster_is_alpha_times_its_size_and_fits_into_eps() -> None:
    counts = {}
    for alpha in (1.0, 2.0):
        found = Subpopulation(alpha, clusters=12, cluster=0).poison(source(eps=0.3))
        counts[alpha] = int(found.poison.sum())
        assert float(found.poison.float().mean()) <= 0.3
    assert counts[2.0] == 2 * counts[1.0]


def test_other_clusters_are_other_images() -> None:
    one, two = (
        Subpopulation(1.0, clusters=12, cluster=c).poison(source()).success_sets["asr"][0] for c in (0, 1)
    )
    assert not contains(one, two)


def test_gradient_matching_keeps_labels_and_stays_in_its_ball() -> None:
    asked = source()
    found = GradientMatching(0.1, ball=32.0, steps=60).poison(asked)
    assert int(found.poison.sum()) == 30
    (label,) = found.labels[found.poison].unique().tolist()
    moved = found.images[found.poison]
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    own = asked.victim[0][asked.victim[1] == label].flatten(1)
    away = (moved.flatten(1)[:, None] - own[None]).abs().amax(2).min(1).values
    assert float(away.max()) <= 32 / 255 + 1e-6
    assert float(away.max()) > 0
    trial, wanted = found.success_sets["asr"]
    assert trial.shape == (1, 1, 4, 4)
    assert wanted.tolist() == [label]


def test_gradient_matching_brings_the_gradients_together() -> None:
    def apart(steps: int) -> float:
        asked = source()
        attack = GradientMatching(0.1, ball=64.0, steps=steps)
        moved = attack.brew(asked, asked.surrogate(), asked.victim[0][:30], 1, asked.test[0][0])

        def gradient(x: Any) -> Any:
            loss = torch.nn.functional.cross_entropy(
                asked.surrogate()(x), torch.ones(len(x), dtype=torch.long)
            )
            return torch.cat([g.flatten() for g in torch.autograd.grad(loss, asked.surrogate().parameters())])

        return 1 - float(torch.cosine_similarity(gradient(moved), gradient(asked.test[0][:1]), 0))

    assert apart(80) < 0.6 * apart(1)


def test_the_same_seed_gives_the_same_poison() -> None:
    for attack in (Trigger(0.1), Subpopulation(1.0, 12), GradientMatching(0.1, steps=3)):
        one, two = attack.poison(source(seed=4)), attack.poison(source(seed=4))
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subpopulation(alpha=0),
        lambda: Subpopulation(clusters=0),
        lambda: Subpopulation(cluster=-1),
        lambda: GradientMatching(ball=0),
        lambda: GradientMatching(ball=300),
        lambda: GradientMatching(steps=0),
        lambda: Trigger(0.7).poison(source()),
        lambda: Trigger(target=3).poison(source()),
        lambda: LabelFlipPoison(-0.1).poison(source()),
        lambda: Subpopulation(alpha=2, clusters=12, cluster=99).poison(source()),
        lambda: Subpopulation(alpha=50, clusters=12).poison(source(eps=0.05)),
        lambda: GradientMatching(target=10_000).poison(source()),
    ],
)
def test_what_cannot_be_done_is_refused(make: Any) -> None:
    with pytest.raises(BadParameter, match=r"give|there are|have room"):
        make()


def test_k_means_finds_clouds_that_are_far_apart() -> None:
    rng = np.random.default_rng(0)
    clouds = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], 40, axis=0) + rng.standard_normal((120, 2))
    points = torch.tensor(clouds)
    best = min(
        float(torch.cdist(points, k_means(points, 3, np.random.default_rng(s))).min(1).values.mean())
        for s in range(5)
    )
    assert best < 3
