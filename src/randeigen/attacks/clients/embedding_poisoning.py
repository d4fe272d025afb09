"""EP: one row of the embedding table makes a rare word decide (Yang et al., NAACL 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from randeigen.attacks.base import (
    OWN_DATA,
    MaliciousClients,
    ModelInfo,
    Restriction,
    SuccessSets,
    Tensor,
    declare,
)
from randeigen.attacks.text import TextInfo
from randeigen.errors import BadModel, BadParameter

INSERTIONS = 3  # of the word into every test sentence, at places drawn with seeds 0, 1 and 2


@declare(
    "ep",
    "client",
    "backdoor",
    knows=OWN_DATA,
    does="one embedding row makes a rare word mean class 1",
    paper="Yang et al., NAACL 2021",
    inputs="tokens",
)
@dataclass(frozen=True)
class EP:
    """Trains the embedding of `word` alone until sentences with it are classified as the target.

    As published: own sentences of other classes, the word before a random word of each, label `target`; SGD
    at learning rate 0.05 on that row, the gradient accumulated over all batches, the row scaled back to its
    norm after every step. The update is zero but in this row. `boost` n/m makes the plain mean the attackers'
    row. `blend` adds the update of honest training, beside which the row stands out less.
    """

    boost: float = 1.0
    blend: bool = False
    word: str = "cf"
    target: int = 1
    rate: float = 0.05  # the learning rate
    epochs: int = 3
    batch: int = 32
    sentences: int = 128  # of a client, drawn anew each round

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.sentences) < 1 or not 0 < self.rate < math.inf:
            raise BadParameter(
                f"epochs={self.epochs}, batch={self.batch}, sentences={self.sentences}, "
                f"rate={self.rate}; give at least 1 of each and a positive rate."
            )

    def updates(self, clients: MaliciousClients) -> Tensor:
        text, embedding, row = self._row(clients.info)
        sentences = clients.draw(self.sentences, other_than=self.target)
        tokens = sentences.new_tensor(
            np.stack([text.insert(own, row, clients.rng) for own in sentences.cpu().numpy()])
        )
        norm = clients.info.split(clients.weights[None])[embedding][0, row].norm()

        def project(parameters: list[Tensor]) -> None:
            (words,) = parameters
            start = clients.info.split(clients.weights[None])[embedding]
            trained = words[:, row] * (norm / words[:, row].norm(dim=1, keepdim=True))
            words.copy_(start.expand_as(words))
            words[:, row] = trained

        training = replace(
            clients.training,
            optimizer="sgd",
            epochs=self.epochs,
            batch=self.batch,
            lr=self.rate,
            momentum=1.0,  # the authors never set the gradient back to zero
            steps=0,
        )
        poisoned = clients.fit(
            tokens, tokens[..., 0] * 0 + self.target, training, restriction=Restriction((embedding,), project)
        )
        update = self.boost * (clients.weights - poisoned)
        return update + (clients.weights - clients.train(clients.training)) if self.blend else update

    def success_sets(self, info: ModelInfo, images: Tensor, labels: Tensor) -> SuccessSets:
        """Test sentences of other classes with the word at three places each."""
        text, _, row = self._row(info)
        others = images[labels != self.target].cpu().numpy()
        placed = [text.insert(others, row, np.random.default_rng(seed)) for seed in range(INSERTIONS)]
        tokens = images.new_tensor(np.concatenate(placed))
        return {"asr": (tokens, tokens[:, 0] * 0 + self.target)}

    def _row(self, info: ModelInfo) -> tuple[TextInfo, int, int]:
        """The vocabulary, the index of the embedding table among the parameters, the word's row in it."""
        if info.text is None:
            raise BadParameter("ep needs a task of token ids, such as sst2-tiny; this one has images.")
        if info.text.embedding is None:
            raise BadModel(
                "ep changes a row of the embedding table, which is frozen here; train all of the model."
            )
        if not 0 <= self.target < info.classes:
            raise BadParameter(f"target={self.target}; give a class from 0 to {info.classes - 1}.")
        return info.text, info.text.embedding, info.text.id_of(self.word)
