"""A demonstration one can watch: thirty clients train on handwritten digits, six of them lie.

    python -m randeigen.demo            writes into ./demo-output, under half a minute, no torch

Everything shown is computed as it is shown: the updates are real, written to files, aggregated by the command
itself, and the resulting models are tested on images no client has seen.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen import aggregate
from randeigen.errors import MissingExtra, RandEigenError
from randeigen.report import draw_clients
from randeigen.rows import write_safetensors

Model: TypeAlias = dict[str, NDArray[Any]]
Labels: TypeAlias = NDArray[np.int64]
Images: TypeAlias = NDArray[np.float64]

CLIENTS, FLIPPERS, COLLUDERS = 30, 3, 3
HIDDEN, CLASSES = 32, 10
TESTED, PUBLIC = 500, 40  # images kept for the test, and to start the common model with
FLIP_BOOST = 3.0  # flippers send this many times what they learned
PULL = 10.0  # colluders step back this many times what they learned together


class Data(NamedTuple):
    """Images and their labels."""

    x: Images
    y: Labels

    def some(self, which: NDArray[Any]) -> Data:
        """These of them."""
        return Data(self.x[which], self.y[which])


class World(NamedTuple):
    """What the server does not see: the common model, each client's update, and who lies."""

    start: Model
    updates: list[Model]
    corrupt: NDArray[np.bool_]
    test: Data


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m randeigen.demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--into", default="demo-output", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="another split, another six liars")
    asked = parser.parse_args(arguments)
    if asked.seed < 0:
        parser.error("--seed: give a number from 0.")
    try:
        return show(asked.into, asked.seed)
    except MissingExtra as error:
        print(f"The demo cannot run: {error}", file=sys.stderr)
        return 3
    except (RandEigenError, OSError) as error:
        print(f"The demo cannot go on: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing is left half-written.", file=sys.stderr)
        return 130


def show(folder: str, seed: int) -> int:
    """The whole demonstration, step by step."""
    command = _command()
    world = train_clients(seed)
    f = int(world.corrupt.sum())
    paths = write_updates(os.path.join(folder, "updates"), world.updates)
    print(f"{CLIENTS} clients trained on their own digits and sent {len(flat(world.start)):,} numbers each.")
    print(f"{FLIPPERS} of them trained on false labels and sent {FLIP_BOOST:g} times what came of it;")
    print(f"{COLLUDERS} agreed on a common step against what they learned, {PULL:g} times as long.\n")

    out, audit = os.path.join(folder, "mean.safetensors"), os.path.join(folder, "audit.json")
    call = ["aggregate", os.path.join(folder, "updates"), "--f", str(f), "--out", out, "--audit", audit]
    call += ["--seed", str(seed), "--force"]
    print(f"$ randeigen {shlex.join(call)}", flush=True)
    if code := command(call, prog_name="randeigen", standalone_mode=False):
        return int(code)

    rows = np.stack([flat(update) for update in world.updates])
    result = aggregate(paths, f=f, seed=seed)
    means = {
        "plain mean": rows.mean(axis=0),
        "randeigen": flat(read(out)),
        "honest only": rows[~world.corrupt].mean(axis=0),
    }
    tell_accuracy(world, means)
    picture = os.path.join(folder, "clients.png")
    marks = {name: means[name] for name in ("randeigen", "plain mean")}
    title = f"{CLIENTS} client updates, {f} of them corrupt: who was left out"
    draw_clients(picture, rows, result.weights, corrupt=world.corrupt, marks=marks, title=title)
    tell_files(world, paths, out, audit, picture)
    return 0


def _command() -> Any:
    # Here, not above: a missing extra must be told, not raised.
    try:
        from randeigen.cli.app import app
    except ImportError:
        raise MissingExtra("it needs typer and rich: pip install 'randeigen[demo]'") from None
    return app


def train_clients(seed: int) -> World:
    """Real updates: every client starts from the common model and trains on its own uneven share."""
    rng = np.random.default_rng(seed)
    data = load_digits(rng)
    test, public, private = np.split(np.arange(len(data.y)), [TESTED, TESTED + PUBLIC])
    start = fit(new_model(rng), data.some(public), rng, epochs=25, rate=0.1)
    shares = split(data.some(private), rng)
    liars = rng.choice(CLIENTS, FLIPPERS + COLLUDERS, replace=False)
    flippers, colluders = liars[:FLIPPERS].tolist(), liars[FLIPPERS:].tolist()

    updates = []
    for client, share in enumerate(shares):
        labels = (share.y + 1) % CLASSES if client in flippers else share.y
        trained = fit(start, Data(share.x, labels), rng, epochs=20, rate=0.2)
        step = FLIP_BOOST if client in flippers else 1.0
        updates.append({name: step * (trained[name] - start[name]) for name in start})
    # The colluders know only what they themselves learned. Each adds the same step against the mean of it
    # to its own honest update, so that no two files are alike.
    learned = {name: np.mean([updates[c][name] for c in colluders], axis=0) for name in start}
    for client in colluders:
        updates[client] = {name: leaf - PULL * learned[name] for name, leaf in updates[client].items()}
    corrupt = np.isin(np.arange(CLIENTS), liars)
    return World(start, [narrow(update) for update in updates], corrupt, data.some(test))


def load_digits(rng: Generator) -> Data:
    """scikit-learn's 1,797 handwritten digits, in a random order."""
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise MissingExtra("it needs scikit-learn: pip install 'randeigen[demo]'") from None
    x, y = bundled(return_X_y=True)
    order = rng.permutation(len(y))
    return Data(np.asarray(x)[order] / 16.0, np.asarray(y, dtype=np.int64)[order])


def split(data: Data, rng: Generator) -> list[Data]:
    """One share for each client; which digits a client has much of differs from client to client."""
    taste = 0.2 / CLIENTS + 0.8 * rng.dirichlet(np.ones(CLIENTS), size=CLASSES)
    owner = np.array([rng.choice(CLIENTS, p=taste[label]) for label in data.y])
    return [data.some(owner == client) for client in range(CLIENTS)]


def new_model(rng: Generator) -> Model:
    """One hidden layer, not yet trained."""
    return {
        "hidden.weight": rng.normal(0, 0.18, (64, HIDDEN)),
        "hidden.bias": np.zeros(HIDDEN),
        "out.weight": rng.normal(0, 0.2, (HIDDEN, CLASSES)),
        "out.bias": np.zeros(CLASSES),
    }


def forward(model: Model, x: Images) -> tuple[Images, Images]:
    """The hidden layer and the scores of the classes."""
    hidden = np.maximum(x @ model["hidden.weight"] + model["hidden.bias"], 0)
    return hidden, hidden @ model["out.weight"] + model["out.bias"]


def fit(model: Model, data: Data, rng: Generator, epochs: int, rate: float, batch: int = 16) -> Model:
    """Plain stochastic gradient descent on the cross-entropy; a new model."""
    model = {name: leaf.copy() for name, leaf in model.items()}
    for _ in range(epochs):
        order = rng.permutation(len(data.y))
        for at in range(0, len(order), batch):
            some = order[at : at + batch]
            for name, slope in gradient(model, *data.some(some)).items():
                model[name] -= rate * slope
    return model


def gradient(model: Model, x: Images, y: Labels) -> Model:
    """Of the mean cross-entropy, by hand."""
    hidden, scores = forward(model, x)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = (chances / chances.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    behind = (error @ model["out.weight"].T) * (hidden > 0)
    return {
        "hidden.weight": x.T @ behind,
        "hidden.bias": behind.sum(axis=0),
        "out.weight": hidden.T @ error,
        "out.bias": error.sum(axis=0),
    }


def accuracy(model: Model, data: Data) -> float:
    """The share of images it gets right."""
    return float((forward(model, data.x)[1].argmax(axis=1) == data.y).mean())


def narrow(model: Model) -> Model:
    """As it is sent: float32."""
    return {name: leaf.astype(np.float32) for name, leaf in model.items()}


def flat(model: Model) -> NDArray[np.float64]:
    """All numbers of a model in one row."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in model.values()])


def moved(model: Model, step: NDArray[np.float64]) -> Model:
    """The model after an update."""
    ends = np.cumsum([leaf.size for leaf in model.values()])[:-1]
    parts = np.split(step, ends)
    return {
        name: leaf + part.reshape(leaf.shape) for (name, leaf), part in zip(model.items(), parts, strict=True)
    }


def write_updates(folder: str, updates: Sequence[Model]) -> list[str]:
    """One file for each client."""
    os.makedirs(folder, exist_ok=True)
    paths = [
        os.path.join(folder, f"client-{number:02d}.safetensors") for number in range(1, len(updates) + 1)
    ]
    for path, update in zip(paths, updates, strict=True):
        write_safetensors(path, update)
    return paths


def read(path: str) -> Model:
    """A file's arrays by name: the mean of one row is that row."""
    found: Model = aggregate([path], f=0).mean
    return found


def tell_accuracy(world: World, means: dict[str, NDArray[np.float64]]) -> None:
    """What each way of averaging does to the common model."""
    print(f"\nThe common model after this round, on {len(world.test.y)} images no client has seen:\n")
    lines = [("before the round", accuracy(world.start, world.test))]
    lines += [(name, accuracy(moved(world.start, mean), world.test)) for name, mean in means.items()]
    for name, score in lines:
        print(f"  {name:<17} {score:6.1%} right  {'█' * round(40 * score)}")
    print(
        "\n  (honest only needs to know who lies, which a server does not; it is the best one could hope for)"
    )


def tell_files(world: World, paths: Sequence[str], out: str, audit: str, picture: str) -> None:
    """Where everything is, and what to do with it."""
    liars = ", ".join(
        os.path.basename(paths[row]).split(".")[0] for row in np.flatnonzero(world.corrupt).tolist()
    )
    print(f"\nThe liars were {liars}.\n")
    print(f"Written: {os.path.dirname(paths[0])}{os.sep} ({len(paths)} updates), {out}, {audit}")
    print(f"Look at: {picture}")
    print("\nTry next:")
    print(f"  randeigen replay {shlex.quote(audit)}")
    folder = shlex.quote(os.path.dirname(paths[0]))
    plain = shlex.quote(os.path.join(os.path.dirname(out), "plain.safetensors"))
    print(f"  randeigen aggregate {folder} --f {int(world.corrupt.sum())} --rule mean --out {plain}")


if __name__ == "__main__":
    raise SystemExit(main())
