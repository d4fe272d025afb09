"""Adds up the Gram matrix of per-example gradients from the terms of all parameters, in few operations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from randeigen.torch.gradients.factors import Dense, PerExampleGradient, gram_of, joint_gram

MAX_WAITING_BYTES = 2**20  # small terms wait for one another, to be added in one operation


class GramAccumulator:
    """Adds up (n, n) Gram matrices, one term per parameter, in float64."""

    def __init__(self, n: int, device: torch.device, piece: int) -> None:
        self.n, self.device, self.piece = n, device, piece
        self.rows: list[Tensor] = []  # dense gradients, to be concatenated and multiplied at once
        self.gram_terms: list[Tensor] = []
        self.waiting_bytes = 0
        self.sum: Tensor | None = None
        self.full_precision = _FullPrecision()
        self.lock = threading.Lock()  # autograd uses a thread per device

    def add(self, parameter: nn.Parameter, gradients: Sequence[PerExampleGradient]) -> None:
        """Add the term of one parameter, whose gradient is the sum of these."""
        with self.lock:
            first = gradients[0]
            rows = first.rows if len(gradients) == 1 and isinstance(first, Dense) else None
            if rows is not None and rows.untyped_storage().nbytes() <= MAX_WAITING_BYTES:
                self._enqueue(self.rows, rows.reshape(self.n, -1))
            else:
                with self.full_precision:
                    self._enqueue(self.gram_terms, joint_gram(gradients, parameter.shape, self.piece))

    def total(self) -> Tensor:
        """(n, n) the sum of all terms."""
        self._add_waiting()
        if self.sum is None:
            return torch.zeros(self.n, self.n, dtype=torch.float64, device=self.device)
        return self.sum

    def _enqueue(self, queue: list[Tensor], values: Tensor) -> None:
        queue.append(values.to(self.device))
        self.waiting_bytes += values.untyped_storage().nbytes()
        if self.waiting_bytes > MAX_WAITING_BYTES:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if self.rows:
            with self.full_precision:
                self.gram_terms.append(gram_of(torch.cat(self.rows, 1)))
        if not self.gram_terms:
            return
        is_single = len(self.gram_terms) == 1
        gram = self.gram_terms[0] if is_single else torch.stack(self.gram_terms).sum(0, dtype=torch.float64)
        self.sum = gram.double() if self.sum is None else self.sum.add_(gram)
        self.rows, self.gram_terms, self.waiting_bytes = [], [], 0


class _FullPrecision:
    """No TF32 for the Gram matrix, whatever the caller trains with: an adversary could use its 2⁻¹¹."""

    def __init__(self) -> None:
        self.flags: Any = torch.backends.cuda.matmul
        is_new = hasattr(self.flags, "fp32_precision")  # since torch 2.9
        self.name = "fp32_precision" if is_new else "allow_tf32"
        self.full: Any = "ieee" if is_new else False
        self.before = getattr(self.flags, self.name)
        self.is_reduced = self.before not in (self.full, "none")

    def __enter__(self) -> None:
        if self.is_reduced:
            setattr(self.flags, self.name, self.full)

    def __exit__(self, *_: object) -> None:
        if self.is_reduced:
            setattr(self.flags, self.name, self.before)
