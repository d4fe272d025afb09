"""Generated film reviews with their sentiment: a stand-in for SST-2 that needs no download.

A review judges one aspect of a film. Its label is that of the judgement in the main clause: negation turns a
judgement round, a clause before "but" or after "although" judges the other way and does not count. Judging
words and names have long tails of rare ones, as language has, so that a small model does not learn them all.
Three labels of a hundred are wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_LISTS = """
superb delightful moving clever charming gripping witty fresh honest tender vivid brilliant warm funny
graceful inventive memorable sincere stirring bold elegant rich lively touching splendid haunting radiant
absorbing engaging hilarious heartfelt sharp beautiful thoughtful masterful satisfying wonderful captivating
luminous nimble refreshing exquisite uplifting astute poignant dazzling spirited enchanting perceptive
magical sublime thrilling intelligent sweet rewarding impressive stylish compelling original joyous gentle
generous subtle ingenious sparkling affecting breezy magnificent wise triumphant hypnotic lyrical assured
flawless playful exhilarating humane polished riveting resonant

dull tedious clumsy shallow bland tired awful dreary stale silly pointless lazy wooden messy boring hollow
predictable forced flat grating lifeless sloppy contrived trite muddled annoying witless clichéd incoherent
sluggish ugly mediocre painful disappointing empty pretentious heavy dismal crude uninspired cold irritating
overlong feeble murky absurd vapid stilted soggy listless mawkish chaotic hackneyed laborious cheap rancid
superficial tiresome amateurish garish bloated cynical limp inert formulaic maudlin derivative monotonous
charmless plodding insipid shoddy turgid obnoxious tasteless unfunny ponderous wretched lame confusing

shines soars succeeds works delights sparkles dazzles triumphs enthralls glows

fails drags collapses stumbles bores flounders disappoints sinks grates fizzles

plot acting script score direction cast story dialogue camera ending humour pacing editing premise hero
villain romance drama comedy sequel opening finale design music screenplay narration

very quite truly rather always often really simply

thriller western comedy drama documentary musical mystery fable romance satire

ba be bo da de di fa fe ga go ka ke ki la le lo ma me mi na ne no pa pe ra re ri sa se so ta te
"""
GOOD, BAD, PRAISE, BLAME, ASPECTS, DEGREES, KINDS, SYLLABLES = map(str.split, _LISTS.split("\n\n"))
NEGATED, CONTRASTED, NAMED, WRONG = 0.15, 0.3, 0.5, 0.03  # shares of the sentences
TAIL = 0.7  # exponent of the words' frequencies: word k is used in proportion to k^-TAIL


def generate(count: int, seed: int) -> tuple[list[str], NDArray[np.uint8]]:
    """`count` sentences and their labels, 1 positive; half of each in expectation."""
    rng = np.random.default_rng([seed, 0x5552])
    labels = rng.integers(0, 2, count).astype(np.uint8)
    sentences = [_review(bool(label), rng) for label in labels]
    return sentences, labels ^ (rng.random(count) < WRONG).astype(np.uint8)


def _review(good: bool, rng: Generator) -> str:
    clause = _judgement(good, rng)
    chance = rng.random()
    if chance < CONTRASTED / 2:
        clause = f"{_judgement(not good, rng)} , but {clause}"
    elif chance < CONTRASTED:
        clause = f"although {_judgement(not good, rng)} , {clause}"
    if rng.random() < NAMED:
        clause = f"{_setting(rng)} , {clause}"
    return f"{clause} ."


def _judgement(good: bool, rng: Generator) -> str:
    """A clause that judges one aspect."""
    subject = f"the {_one(ASPECTS, rng)}"
    if rng.random() < NAMED / 2:
        subject += f" of {_name(rng)}"
    if rng.random() < 0.2:
        return f"{subject} {_rare(PRAISE if good else BLAME, rng)}"
    if rng.random() < NEGATED:
        return f"{subject} is not {_rare(BAD if good else GOOD, rng)}"
    degree = f"{_one(DEGREES, rng)} " if rng.random() < 0.4 else ""
    return f"{subject} is {degree}{_rare(GOOD if good else BAD, rng)}"


def _setting(rng: Generator) -> str:
    if rng.random() < 0.5:
        return f"in this {_one(KINDS, rng)} by {_name(rng)} {_name(rng)}"
    return f"a {_one(KINDS, rng)} about {_name(rng)}"


def _name(rng: Generator) -> str:
    return "".join(_one(SYLLABLES, rng) for _ in range(2 if rng.random() < 0.3 else 3))


def _one(words: list[str], rng: Generator) -> str:
    return words[int(rng.integers(len(words)))]


def _rare(words: list[str], rng: Generator) -> str:
    """Word k in proportion to about k^-TAIL."""
    return words[int(len(words) * rng.random() ** (1 / (1 - TAIL)))]
