"""Robust steps in a Lightning trainer: a callback, where `training_step` returns one loss per example."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from randeigen.api import RuleLike
from randeigen.errors import BadModel, MissingExtra
from randeigen.torch.backward import backward
from randeigen.torch.group_verdict import BatchVerdict, rule_for
from randeigen.types import OnExcess

try:
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback  # the older name, where the caller has imported that
    else:
        from lightning.pytorch import Callback
except ImportError:
    raise MissingExtra(
        "randeigen.torch.lightning needs lightning: pip install 'randeigen[lightning]'"
    ) from None


class RobustSteps(Callback):  # type: ignore[misc]  # the library is not looked into
    """Makes every step of `Trainer.fit` from the robust average of the per-example gradients.

    `training_step` returns the losses of the examples, a vector (`reduction="none"`). Accumulated batches,
    clipping, precision and schedules are Lightning's, as ever. `verdict` is that of the last step; its
    numbers are logged as `robust/left_out`, `robust/bias_bound` and `robust/distance_to_mean`.

    Parameters:
        eps: the fraction of examples that may be poisoned; `f`, `rule`, `directions`, `on_excess` as for
            `randeigen.torch.backward`.
        groups: a function of the batch that gives each example's label, such as `lambda batch: batch[1]`:
            examples are judged among those of their label.
    """

    def __init__(
        self,
        eps: float | None = None,
        *,
        f: int | None = None,
        rule: RuleLike | None = None,
        groups: Callable[[Any], Any] | None = None,
        directions: bool = False,
        on_excess: OnExcess = "raise",
    ) -> None:
        super().__init__()
        rule_for(eps, f, rule, on_excess)  # a mistake is told before training begins
        self.options: dict[str, Any] = {"eps": eps, "f": f, "rule": rule}
        self.options |= {"directions": directions, "on_excess": on_excess}
        self.groups, self.labels = groups, None
        self.verdict: BatchVerdict | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the place of the module's `backward`."""
        if trainer.world_size > 1 or not pl_module.automatic_optimization:
            raise BadModel(
                "RobustSteps works in one process and with automatic optimisation, found "
                f"{trainer.world_size} and automatic_optimization={pl_module.automatic_optimization}; with "
                "steps of your own, call randeigen.torch.backward in training_step."
            )

        def robust_backward(losses: Tensor, *args: Any, **kwargs: Any) -> None:
            self.verdict = backward(losses, pl_module, groups=self.labels, **self.options)

        pl_module.backward = robust_backward

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the module as it was."""
        pl_module.__dict__.pop("backward", None)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Find the labels to judge by."""
        self.labels = None if self.groups is None else self.groups(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Log the verdict's numbers."""
        if self.verdict is not None:
            numbers = {
                "left_out": float(self.verdict.left_out.size),
                "bias_bound": self.verdict.bias_bound,
                "distance_to_mean": self.verdict.distance_to_mean,
            }
            logged = {f"robust/{name}": value for name, value in numbers.items() if value is not None}
            pl_module.log_dict(logged, batch_size=self.verdict.weights.size)
