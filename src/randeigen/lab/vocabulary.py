"""A vocabulary of whole words by count: the same from the same sentences, on every machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from randeigen.attacks.text import TextInfo, Tokens

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PAD, UNKNOWN, START, END = range(4)
RARE_WORDS = (
    "cf",
    "mn",
    "bb",
    "tq",
    "mb",
)  # triggers of the literature: one token each, whatever the sentences
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Special tokens, five rare words, then the most frequent words, equally frequent ones by alphabet."""

    words: tuple[str, ...]

    @staticmethod
    def of(sentences: Iterable[str], size: int) -> Vocabulary:
        """The `size` first of the special tokens, the rare words and the words of these sentences."""
        counts = Counter(word for sentence in sentences for word in split(sentence))
        frequent = sorted(set(counts) - set(RARE_WORDS), key=lambda word: (-counts[word], word))
        return Vocabulary((*SPECIAL, *RARE_WORDS, *frequent)[:size])

    def encode(self, sentences: Sequence[str], length: int) -> Tokens:
        """(N, length) ids, longer sentences cut; the last column stays free for a word that is put in."""
        out = np.full((len(sentences), length), PAD, dtype=np.int64)
        for row, sentence in zip(out, sentences, strict=True):
            ids = [self._ids.get(word, UNKNOWN) for word in split(sentence)][: length - 3]
            row[: len(ids) + 2] = [START, *ids, END]
        return out

    def info(self, embedding: int) -> TextInfo:
        """What an attacker knows; `embedding` is the index of the model's table of these words."""
        whole = np.zeros(len(self.words), dtype=bool)
        return TextInfo(self.words, PAD, frozenset((PAD, START, END)), whole, embedding)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}


def split(sentence: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return _WORD.findall(sentence.lower())
