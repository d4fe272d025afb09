"""The table, added up from the shares of all parameters in few operations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from randeigen.torch.gradients.factors import Dense, PerExampleGradient, joint_gram, products

MAX_WAITING_BYTES = 2**20  # bytes: small shares wait for one another, to be added in one operation


class GramAccumulator:
    """Adds up (n, n) shares in float64."""

    def __init__(self, n: int, device: torch.device, piece: int) -> None:
        self.n, self.device, self.piece = n, device, piece
        self.rows: list[Tensor] = []  # gradients written out, to be laid side by side and multiplied at once
        self.shares: list[Tensor] = []
        self.waiting = 0
        self.sum: Tensor | None = None
        self.in_full = _FullPrecision()
        self.alone = threading.Lock()  # layers on several devices are met by several threads

    def add(self, parameter: nn.Parameter, factors: Sequence[PerExampleGradient]) -> None:
        """The share of one parameter."""
        with self.alone:
            rows = factors[0].rows if len(factors) == 1 and isinstance(factors[0], Dense) else None
            if rows is not None and rows.untyped_storage().nbytes() <= MAX_WAITING_BYTES:
                self._wait(self.rows, rows.reshape(self.n, -1))
            else:
                with self.in_full:
                    self._wait(self.shares, joint_gram(factors, parameter.shape, self.piece))

    def total(self) -> Tensor:
        """The table."""
        self._settle()
        if self.sum is None:
            return torch.zeros(self.n, self.n, dtype=torch.float64, device=self.device)
        return self.sum

    def _wait(self, line: list[Tensor], share: Tensor) -> None:
        line.append(share.to(self.device))
        self.waiting += share.untyped_storage().nbytes()
        if self.waiting > MAX_WAITING_BYTES:
            self._settle()

    def _settle(self) -> None:
        if self.rows:
            with self.in_full:
                self.shares.append(products(torch.cat(self.rows, 1)))
        if not self.shares:
            return
        one = len(self.shares) == 1
        found = self.shares[0] if one else torch.stack(self.shares).sum(0, dtype=torch.float64)
        self.sum = found.double() if self.sum is None else self.sum.add_(found)
        self.rows, self.shares, self.waiting = [], [], 0


class _FullPrecision:
    """No TF32 for the table, whatever the caller trains with: its 2⁻¹¹ would be an adversary's to use."""

    def __init__(self) -> None:
        self.flags = torch.backends.cuda.matmul
        new = hasattr(self.flags, "fp32_precision")
        self.name = "fp32_precision" if new else "allow_tf32"
        self.full: Any = "ieee" if new else False
        self.before = getattr(self.flags, self.name)
        self.narrow = self.before not in (self.full, "none")

    def __enter__(self) -> None:
        if self.narrow:
            setattr(self.flags, self.name, self.full)

    def __exit__(self, *_: object) -> None:
        if self.narrow:
            setattr(self.flags, self.name, self.before)
