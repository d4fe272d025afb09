"""The front door."""

from __future__ import annotations

from typing import Any

from randeigen import pipeline
from randeigen.errors import BadFraction, BadParameter
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.rules import RandEigen
from randeigen.types import Aggregate, Progress, Rule


def aggregate(
    rows: Any,
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: Rule | None = None,
    seed: int | None = None,
    geometry: str = "auto",
    on_excess: str = "raise",
    row_weights: Any = None,
    cap: float = MAX_CLAIM_RATIO,
    progress: Progress | None = None,
) -> Aggregate:
    """Average `rows`, of which a fraction `eps` (or a count `f`) may be corrupt, and certify the answer.

    The certificate, `bias_bound`: f corrupt rows can have moved the answer by at most this at these weights:
    it is that close to the mean of the honest rows alone at the same weights, and may be further from their
    plain mean. f is `f`, or ceil(eps·n); where that is half of the usable rows or more, the bound is inf.

    Rows: an (n, d) array, memmap or tensor; a sequence of vectors, state_dicts or lists of arrays; or paths
    to .safetensors, .npz or .npy files. The mean comes back in the same form, dtype and device.

    Give exactly one of `eps`, `f` and `rule`; the first two mean `RandEigen`. `seed=None` draws coins nobody
    can foresee; the one used is in the result and replays the call. `geometry` forces how rows are measured:
    "gram" (exact), "sketch", "gaussian" (the paper's). More unusable rows than f fail closed, unless
    `on_excess="drop"`: then as many are assumed corrupt among the rest. `row_weights` are the senders' own
    claims (example counts): each counts up to `cap` times the median one, and where the f heaviest rows
    would then hold more than a third, claims are mixed with equal weights. A claim that is no number from 0
    costs its row all weight. `seed` is a whole number from 0, of any size.
    `progress(stage, done, total)` is called as columns are read.
    """
    if sum(given is not None for given in (eps, f, rule)) != 1:
        found = [f"{k}={v}" for k, v in (("eps", eps), ("f", f), ("rule", rule)) if v is not None]
        raise BadFraction(
            "give exactly one of eps (the fraction of rows you fear), f (their number) and rule; "
            f"found {' and '.join(found) or 'none of them'}."
        )
    if rule is None:
        rule = RandEigen(eps, f)
    elif isinstance(rule, type) or not callable(getattr(rule, "weigh", None)):
        raise BadParameter(
            f"rule={rule!r} is not a rule; give a value such as randeigen.rules.Krum(eps=0.2)."
        )
    return pipeline.run(
        rows,
        rule,
        seed=seed,
        geometry=geometry,
        on_excess=on_excess,
        row_weights=row_weights,
        cap=cap,
        progress=progress,
    )
