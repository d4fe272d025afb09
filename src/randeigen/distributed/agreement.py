"""Before rows are exchanged: all ranks hold rows of one form, and toss a coin together.

A rank that would send another length ends every other rank's process in gloo, and hangs it in NCCL. So each
first tells what it holds, in a few integers, and if they differ every rank raises the same error.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from randeigen.distributed.peers import Peers
from randeigen.errors import BadParameter, BadRows
from randeigen.rules import Rule

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
COIN_BITS = 40  # coins of a million ranks still add up in 63 bits
MAX_RANKS_NAMED = 8


class Form(NamedTuple):
    """What a rank holds, in integers that can be sent."""

    faulty: int  # whether it cannot be averaged at all
    numbers: int
    tensors: int
    dtype: int  # index of the first tensor's in DTYPES
    digest: int  # of all shapes and dtypes in order
    rule: int  # digest of the rule's name, what it assumes, and the seed

    def __str__(self) -> str:
        name = str(DTYPES[self.dtype]).removeprefix("torch.")
        return f"{self.numbers:,} numbers in {self.tensors:,} tensors, {name} first"


def form_of(tensors: Sequence[Tensor], rule: Rule, faulty: bool = False, seed: int | None = None) -> Form:
    """The form of what this rank holds."""
    stated = f"{type(rule).__name__} eps={rule.eps} f={rule.f} seed={seed}"
    if faulty:
        return Form(1, 0, 0, 0, 0, _digest(stated))
    listed = ";".join(f"{tuple(tensor.shape)}{tensor.dtype}" for tensor in tensors)
    numbers = sum(tensor.numel() for tensor in tensors)
    dtype = DTYPES.index(tensors[0].dtype) if tensors else 0
    return Form(0, numbers, len(tensors), dtype, _digest(listed), _digest(stated))


def agree(form: Form, peers: Peers, shards: Sequence[Peers], device: torch.device) -> int:
    """A number that no rank chose alone, the same on all, if all ranks hold rows of one form.

    Raises BadRows or BadParameter on every rank, naming those that differ, if they do not.
    """
    own = torch.tensor([*form, secrets.randbits(COIN_BITS)], dtype=torch.int64, device=device)
    gathered: list[list[int]] = [each.tolist() for each in peers.of_each(own)]
    forms = [Form(*each[:-1]) for each in gathered]
    coin = sum(each[-1] for each in gathered)
    differ = len(set(forms)) > 1 or any(each.faulty for each in forms)
    elsewhere = differ
    for others in shards:  # ranks that hold other columns of the same rows must end, or go on, together
        flags = torch.tensor([int(elsewhere), coin], dtype=torch.int64, device=device)
        flag, coin = (int(number) for number in others.sum(flags).tolist())
        elsewhere = flag > 0
    if differ:
        _refuse(forms)
    if elsewhere:
        raise BadRows("ranks that hold other shards of these rows hold rows of different forms; see theirs.")
    return coin


def _refuse(forms: Sequence[Form]) -> None:
    faulty = [rank for rank, form in enumerate(forms) if form.faulty]
    if faulty:
        raise BadRows(
            f"{_ranks(faulty)} passed what cannot be averaged: its own error says why; all must pass dense "
            "floating-point tensors."
        )
    rules, layouts = [form.rule for form in forms], [form._replace(rule=0) for form in forms]
    if len(set(layouts)) > 1:
        usual, count = Counter(layouts).most_common(1)[0]
        unlike = [rank for rank, layout in enumerate(layouts) if layout != usual]
        first = forms[unlike[0]]
        have = "have" if len(unlike) > 1 else "has"
        difference = f"{_ranks(unlike)} {have} {first}, the {count} others {usual}"
        difference += ", in other shapes or dtypes" if str(first) == str(usual) else ""
        raise BadRows(f"all ranks must hold the same tensors: {difference}; give every rank the same model.")
    usual_rule = Counter(rules).most_common(1)[0][0]
    unlike = [rank for rank, rule in enumerate(rules) if rule != usual_rule]
    raise BadParameter(
        f"{_ranks(unlike)} asked for another rule, eps, f or seed; ask for the same on all ranks."
    )


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:MAX_RANKS_NAMED])) + (" …" if len(ranks) > MAX_RANKS_NAMED else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def step_seed(coin: int, step: int) -> int:
    """The seed of one step, from a coin that was tossed once: no collective is needed for it."""
    return int.from_bytes(hashlib.blake2b(f"{coin} {step}".encode(), digest_size=8).digest(), "big")
