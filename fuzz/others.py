"""Inputs that are not rows for `aggregate`: a caller's mistakes, threads, a training step."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from importlib import import_module
from typing import Any

import numpy as np

import randeigen
from fuzz.inputs import Case, more
from fuzz.world import Failure, attempt, expect, place, unchanged, world
from randeigen.errors import RandEigenError
from randeigen.rules import MIXERS, NNM, RULES, Rule

Rng = np.random.Generator

for late in (
    "sympy",
    "scipy.sparse",
    "clarabel",
):  # what others import late, with filters for warnings of their own
    with suppress(ImportError):
        import_module(late)

# What a caller may pass by mistake instead of rows.
NOT_ROWS: tuple[Callable[[], Any], ...] = (
    *(
        lambda: None,
        lambda: 5,
        lambda: "rows",
        lambda: [],
        lambda: {},
        lambda: set(),
        lambda: b"x",
        lambda: (),
    ),
    *(lambda: iter([np.ones(3)]), lambda: np.ones(3), lambda: np.ones((2, 3, 4)), lambda: np.ones((0, 3))),
    *(
        lambda: np.ones((3, 0)),
        lambda: np.ones((3, 3), int),
        lambda: np.ones((3, 3), bool),
        lambda: [1.0, 2.0],
    ),
    *(
        lambda: np.ones((3, 3), complex),
        lambda: np.empty((2, 2), object),
        lambda: [None, None],
        lambda: [[], []],
    ),
    *(lambda: ["/nowhere/a.npy", "/nowhere/b.npy"], lambda: [{}, {}], lambda: np.ma.ones((3, 3))),
    *(
        lambda: np.array(1.0),
        lambda: np.zeros((2, 2), "M8[s]"),
        lambda: [np.ones(2), np.ones(3)],
        lambda: object(),
    ),
    *(
        lambda: np.zeros(3, [("a", "f4")]),
        lambda: {"a": np.ones(3)},
        lambda: [["x"], ["y"]],
        lambda: np.array(["a"]),
    ),
    *(
        lambda: [{"a": None}] * 3,
        lambda: [[np.ones(2)], [np.ones(3)]],
        lambda: [np.ones(2), {"a": np.ones(2)}],
    ),
)
# And instead of what an option takes.
WRONG: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("eps", (-0.1, 0.5, 1.0, np.nan, np.inf, "0.1", True, [0.1], 0.1j, 10**400)),
    ("f", (-1, 2.0, 10**30, "1", True, None, np.nan, np.float64(1), [1])),
    ("rule", ("krum", 5, randeigen.RandEigen, object(), np.mean, NNM())),
    ("seed", (-1, 1.5, True, "1", 2**200, [1], np.nan, np.uint64(7))),
    ("geometry", (None, 5, "GRAM", "", [], "sketch ")),
    ("on_excess", (None, 5, "ignore", "")),
    ("cap", (0.0, -1.0, np.nan, "3", None, [3.0], 0.5)),
    ("row_weights", ([1, 2], "abc", 5, [[1], [2]], {"a": 1}, [], np.ones((3, 3)), [1j] * 4)),
)
# One sender's word for its own weight, among honest ones.
CLAIMS: tuple[Any, ...] = ("many", None, 10**400, -(10**400), [1], {}, 1j, "nan", "7", True, b"1")
PARAMETERS = (np.nan, np.inf, -np.inf, -1, 0, 0.0, -1.0, True, 1e-320, 1e308, 10**400, 2**70, 3e9)
COUNTS = {
    "steps",
    "rounds",
    "directions",
}  # of what the rule then does: a caller who asks for 2**70 gets them


def mistakes(case: Case) -> str:
    """Whatever a caller does wrong has an error of ours that says what."""
    rng = more(case)
    kind = str(
        rng.choice(
            ["rows", "option", "claim", "parameter", "name", "depth"], p=[0.2, 0.3, 0.2, 0.25, 0.04, 0.01]
        )
    )
    rows, budget = case.rows, case.recipe.budgets[-1]
    if kind == "rows":
        found: Any = NOT_ROWS[int(rng.integers(len(NOT_ROWS)))]()
        call: Callable[[], Any] = lambda: randeigen.aggregate(found, eps=0.2)  # noqa: E731
    elif kind == "option":
        name, values = WRONG[int(rng.integers(len(WRONG)))]
        value = values[int(rng.integers(len(values)))]
        given = {name: value} if name in ("eps", "f", "rule") else {**budget, name: value}
        if name == "cap":
            given["row_weights"] = np.ones(case.n)
        call = lambda: randeigen.aggregate(rows, **given)  # noqa: E731
    elif kind == "claim":
        claims: list[Any] = [1.0] * case.n
        claims[int(rng.integers(case.n))] = CLAIMS[int(rng.integers(len(CLAIMS)))]
        call = lambda: randeigen.aggregate(rows, row_weights=claims, **budget)  # noqa: E731
    elif kind == "parameter":
        made = {**RULES, **MIXERS}[str(rng.choice([*RULES, *MIXERS]))]
        names = [name for name in inspect.signature(made).parameters if name not in ("eps", "f", "removal")]
        parameters = {
            name: PARAMETERS[int(rng.integers(len(PARAMETERS) - (4 if name in COUNTS else 0)))]
            for name in names
            if rng.random() < 0.5
        }
        told = budget if "eps" in inspect.signature(made).parameters else {}

        def call() -> Any:
            rule: Any = made(**told, **parameters)
            return randeigen.aggregate(
                rows, rule=rule if isinstance(rule, Rule) else rule | RULES["mean"](f=0)
            )

        case = _named(case, f"{made} {told} {parameters}")
    elif kind == "name":
        from randeigen.registry import build_rule

        text = "+".join(str(name) for name in rng.choice([*MIXERS, *RULES, "x", "krum:spare=x", ""], 3))
        text = text if rng.random() < 0.5 else "nnm+" * int(rng.choice([5, 40, 3000])) + "krum"

        def call() -> Any:
            return randeigen.aggregate(rows, rule=build_rule(text, None, 1), on_excess="drop")
    else:
        stages = int(rng.choice([20, 400, 3000]))

        def call() -> Any:
            deep = reduce(lambda rule, _: NNM() | rule, range(stages), RULES["mean"](f=0))
            return randeigen.aggregate(rows, rule=deep)

    try:
        result, error = attempt(call)
    except Failure as failure:
        failure.message += f" [{kind} {case.cloud if kind == 'parameter' else ''}]"
        raise
    if result is not None and kind != "rows":
        expect(np.isfinite(result.weights).all(), "weights are not negative", str(result.weights))
    return type(error).__name__ if error else "answered"


def _named(case: Case, text: str) -> Case:
    from dataclasses import replace

    return replace(case, cloud=text[:150])


def threads(case: Case) -> str:
    """Several calls at once: each as if alone, and the world as before."""
    from fuzz.properties import aggregated, rows_of

    rows, before = rows_of(case), world()
    found: list[Any] = []

    def work() -> None:
        for _ in range(3):
            try:
                found.append(aggregated(case, rows, geometry="sketch").weights.tobytes())
            except RandEigenError as error:
                found.append(str(error))
            except Exception as error:
                found.append(error)

    crowd = [threading.Thread(target=work) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    for each in found:
        if isinstance(each, Exception):
            raise Failure("only documented errors", f"{type(each).__name__}: {each}"[:300], place(each))
    expect(len(set(found)) == 1, "threads do not disturb each other", f"{len(set(found))} outcomes")
    unchanged(before)
    return "answered" if isinstance(found[0], bytes) else "refused"


def backward(case: Case) -> str:
    """A training step on examples that may hold anything."""
    import torch

    import randeigen.torch

    rng = more(case)
    inputs = torch.from_numpy(case.rows.astype(np.float64)).float().to(case.device)
    d, wide = inputs.shape[1], int(rng.integers(1, 5))
    body: list[Any] = [torch.nn.Linear(d, wide)]
    if rng.random() < 0.6:
        body += [[torch.nn.ReLU(), torch.nn.Tanh()][int(rng.integers(2))], torch.nn.Linear(wide, 2)]
    if rng.random() < 0.2:
        body.insert(0, torch.nn.LayerNorm(d))
    model = torch.nn.Sequential(*body).to(case.device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))).float())
    losses = (model(inputs) ** 2).sum(1) if rng.random() < 0.5 else torch.logsumexp(model(inputs), 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    more_options: dict[str, Any] = {"on_excess": "drop"} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        more_options["groups"] = rng.integers(2, size=case.n)
    budget = case.recipe.budgets[-1]
    told = budget if "eps" in budget else {"rule": randeigen.RandEigen(**budget)}
    verdict, error = attempt(lambda: randeigen.torch.backward(losses, model, seed=1, **told, **more_options))
    same = all(torch.equal(a, b.detach()) for a, b in zip(before, model.parameters(), strict=True))
    expect(same, "a step writes to gradients only", "parameters changed")
    if error is not None:
        return type(error).__name__
    for parameter in model.parameters():
        if parameter.grad is not None:
            expect(torch.isfinite(parameter.grad).all(), "the gradient is finite", str(parameter.grad)[:200])
    expect(verdict is not None, "a step has a verdict", "")
    return "answered"
