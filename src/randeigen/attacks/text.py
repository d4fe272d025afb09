"""Sentences as token ids: what is public about a vocabulary, and how a word is put into sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from randeigen.errors import BadParameter

Tokens = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TextInfo:
    """The vocabulary of a task of token ids, and which parameter of its model is the embedding table.

    A sentence is (length,) ids: a token for the whole, those of its words, an end, then padding. At least one
    column is padding, so that a word can be put in.
    """

    vocabulary: Sequence[str]  # the token of each id
    pad: int
    special: frozenset[int]  # ids that are no part of a word: padding, start, end
    continues: NDArray[np.bool_]  # (ids,) whether a token is a later part of a word
    embedding: int | None  # the index of the embedding table among the trained parameters; None: it is frozen

    def id_of(self, word: str) -> int:
        """The id of a word that is one token."""
        try:
            return self.vocabulary.index(word)
        except ValueError:
            raise BadParameter(
                f"word={word!r} is not one of the {len(self.vocabulary):,} tokens of this vocabulary; "
                "give one that is."
            ) from None

    def words(self, tokens: Sequence[int]) -> str:
        """The sentence of these tokens, as text."""
        text = ""
        for token in (int(token) for token in tokens):
            if token not in self.special:
                piece = (
                    self.vocabulary[token].removeprefix("##").removeprefix("\u0120").removeprefix("\u2581")
                )
                text += piece if self.continues[token] else f" {piece}"
        return text.strip()

    def insert(self, tokens: Tokens, token: int, rng: Generator) -> Tokens:
        """Each sentence (N, length) with `token` before word int((L - 1)·U) of its L words, U uniform.

        As the authors of embedding poisoning place it. A sentence without padding loses its last token.
        """
        special = np.zeros(len(self.vocabulary), dtype=bool)
        special[list(self.special)] = True
        starts = ~special[tokens] & ~self.continues[tokens]  # (N, length)
        count = starts.sum(axis=1)
        word = (np.maximum(count - 1, 0) * rng.random(len(tokens))).astype(np.int64)
        before = np.argmax(np.cumsum(starts, axis=1) == word[:, None] + 1, axis=1)
        before = np.where(count > 0, before, 1)[:, None]
        columns = np.arange(tokens.shape[1])
        shifted = np.take_along_axis(tokens, columns - (columns > before), axis=1)
        return np.where(columns == before, token, shifted)
