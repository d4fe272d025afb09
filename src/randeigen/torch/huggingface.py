"""Robust steps in Hugging Face's Trainer: a subclass that judges the examples of every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from randeigen.api import RuleLike
from randeigen.errors import BadModel, MissingExtra
from randeigen.torch.backward import backward
from randeigen.torch.group_verdict import BatchVerdict, rule_for
from randeigen.types import OnExcess

try:
    from transformers import Trainer
except ImportError as error:
    raise MissingExtra(
        "randeigen.torch.huggingface needs transformers and accelerate: "
        f"pip install 'randeigen[huggingface]' ({error})"
    ) from None

IGNORED = -100  # the label of tokens that have none


class RobustTrainer(Trainer):  # type: ignore[misc]  # the library is not looked into
    """A `Trainer` whose steps are made from the robust average of the per-example gradients.

    Everything else is `Trainer`'s: arguments, collators, schedules, evaluation, checkpoints. `verdict` is
    that of the last batch; `left_out` and `bias_bound` stand beside `loss` in the log.

    Parameters:
        eps: the fraction of examples that may be poisoned; `f`, `rule`, `directions`, `on_excess` as for
            `randeigen.torch.backward`.
        by_label: judge examples among those of their label; for classification.
        losses: `losses(outputs, labels)` gives one loss per example, of what the model returns. Without it
            that is cross-entropy for classes, for tokens its mean over the labelled ones of each example (of
            the next token in a causal model), and squared error for numbers.
    """

    def __init__(
        self,
        *args: Any,
        eps: float | None = None,
        f: int | None = None,
        rule: RuleLike | None = None,
        by_label: bool = False,
        directions: bool = False,
        on_excess: OnExcess = "raise",
        losses: Callable[[Any, Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        rule_for(eps, f, rule, on_excess)  # a mistake is told before training begins
        self.options: dict[str, Any] = {"eps": eps, "f": f, "rule": rule}
        self.options |= {"directions": directions, "on_excess": on_excess}
        self.by_label, self.losses = by_label, losses
        self.verdict: BatchVerdict | None = None
        super().__init__(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One batch, judged; its gradient is added to `.grad`."""
        if self.args.n_gpu > 1 or self.accelerator.num_processes > 1:
            raise BadModel("RobustTrainer works in one process on one device: set CUDA_VISIBLE_DEVICES=0.")
        model.train()
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        if labels is None:
            raise BadModel(f"a batch has no labels to judge by, found {', '.join(inputs)}; name them labels.")
        with self.compute_loss_context_manager():
            losses: Tensor = (self.losses or self._losses)(model(**inputs), labels)
        steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        losses = losses / steps
        scaler = self.accelerator.scaler
        self.verdict = backward(
            losses if scaler is None else scaler.scale(losses),
            model,
            groups=labels if self.by_label else None,
            **self.options,
        )
        return losses.detach().mean()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Say what the last batch's verdict was, beside its loss."""
        if self.verdict is not None and "loss" in logs:
            logs["left_out"] = float(self.verdict.left_out.size)
            if self.verdict.bias_bound is not None:
                logs["bias_bound"] = self.verdict.bias_bound
        super().log(logs, *args, **kwargs)

    def _losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return losses_of(outputs["logits"], labels, is_causal=_is_causal(self.model))


def losses_of(logits: Tensor, labels: Tensor, *, is_causal: bool = False) -> Tensor:
    """(n,) one loss per example, by what the labels are."""
    if labels.is_floating_point():  # one number: a regression; several: classes that may hold together
        is_number = logits.numel() == len(labels)
        loss: Any = F.mse_loss if is_number else F.binary_cross_entropy_with_logits
        terms: Tensor = loss(logits.reshape(labels.shape), labels, reduction="none")
        return terms.reshape(len(labels), -1).mean(1)
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    if is_causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each_token = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return each_token.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _is_causal(model: Any) -> bool:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # of an adapter
    return type(inner).__name__.endswith(("ForCausalLM", "LMHeadModel"))
