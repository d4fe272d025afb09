"""Distributions of honest rows, for the rule study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from randeigen.attacks.directions import random_direction
from randeigen.types import Array

Cloud: TypeAlias = Callable[[int, Generator], Array]  # (n, rng) -> (n, d) honest rows


def isotropic(n: int, rng: Generator) -> Array:
    """Gaussian, the same in every direction: with d > n any few rows span a direction of their own."""
    return off_centre(rng.standard_normal((n, 500)), rng)


def decaying(n: int, rng: Generator) -> Array:
    """Gaussian with standard deviation j^-1/2 along axis j, like the updates of a network."""
    return off_centre(rng.standard_normal((n, 1000)) / np.sqrt(np.arange(1, 1001)), rng)


def flat(n: int, rng: Generator) -> Array:
    """Gaussian in few dimensions, d = 20 < n: Byzantine rows cannot hide in noise."""
    return off_centre(rng.standard_normal((n, 20)), rng)


def heavy_rows(n: int, rng: Generator) -> Array:
    """Student t with 3 degrees of freedom, one scale per row: honest rows far out in a random direction."""
    scale = np.sqrt(3 / rng.chisquare(3, (n, 1)))
    return off_centre(scale * rng.standard_normal((n, 500)), rng)


def heavy_coordinates(n: int, rng: Generator) -> Array:
    """Student t with 3 degrees of freedom in every coordinate alone: honest rows far out along an axis."""
    return off_centre(rng.standard_t(3, (n, 500)), rng)


def clustered(n: int, rng: Generator) -> Array:
    """Five groups of clients, as from non-iid data: the top directions are honest ones, between groups."""
    centres = 2 * rng.standard_normal((5, 300))
    return off_centre(centres[rng.integers(5, size=n)] + rng.standard_normal((n, 300)), rng)


def digits(n: int, rng: Generator) -> Array:
    """Updates of a softmax model on scikit-learn's digits, iid shares of the images, mid-training."""
    images, _ = digit_images()
    return digit_updates(np.array_split(rng.permutation(len(images)), n), rng)


def skewed_digits(n: int, rng: Generator) -> Array:
    """The same with non-iid shares: sorted by label with noise, so most clients have one to three digits."""
    _, labels = digit_images()
    order = np.argsort(labels + rng.normal(0, 0.7, len(labels)))
    return digit_updates(np.array_split(order, n), rng)


CLOUDS: dict[str, Cloud] = {
    "isotropic": isotropic,
    "decaying": decaying,
    "flat": flat,
    "heavy rows": heavy_rows,
    "heavy coordinates": heavy_coordinates,
    "clustered": clustered,
    "digits": digits,
    "skewed digits": skewed_digits,
}


def off_centre(rows: Array, rng: Generator) -> Array:
    """The rows shifted by a common vector, with a fifth of a typical row's norm: a mean to push against."""
    return rows + 0.2 * float(np.linalg.norm(rows, axis=1).mean()) * random_direction(rows.shape[1], rng)


@cache
def digit_images() -> tuple[Array, Array]:
    """1,797 images of 64 pixels in [0, 1] and a constant 1 for the bias, and their labels."""
    from sklearn.datasets import load_digits  # an extra: only this cloud needs it

    data = load_digits()
    return np.hstack([data.data / 16, np.ones((len(data.data), 1))]), data.target


def digit_updates(shares: Iterable[Array], rng: Generator) -> Array:
    """Each share's update after five local gradient steps from a half-trained model, (len(shares), 650)."""
    images, labels = digit_images()
    start = local_training(0.01 * rng.standard_normal((65, 10)), images, labels, 20)
    return np.array([(start - local_training(start, images[s], labels[s], 5)).ravel() for s in shares])


def local_training(model: Array, images: Array, labels: Array, steps: int, lr: float = 0.5) -> Array:
    """Gradient descent on softmax regression."""
    targets = np.eye(10)[labels]
    for _ in range(steps):
        logits = images @ model
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        model = model - lr * images.T @ (probabilities - targets) / len(images)
    return model
