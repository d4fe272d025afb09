"""BERT classifiers on sentences without padding: what transformers computes, for many clients at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from randeigen.errors import BadModel
from randeigen.lab.config import LocalTraining
from randeigen.lab.partition import shares
from randeigen.lab.tasks import cross_entropy

transformers = pytest.importorskip("transformers")

from randeigen.lab import clients, encoders  # noqa: E402
from randeigen.lab.encoders import Classifier  # noqa: E402
from randeigen.lab.packed_bert import WORDS, PackedBert  # noqa: E402
from randeigen.lab.packed_sentences import GROUP_LENGTHS, Packing  # noqa: E402
from randeigen.lab.stacked_model import StackedModel  # noqa: E402
from randeigen.lab.stacked_sgd import Data  # noqa: E402
from randeigen.lab.used_words import UsedWords  # noqa: E402

VOCABULARY, LENGTH = 400, 40


def classifier(**changes: Any) -> Classifier:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_labels": 2}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 64}
    torch.manual_seed(0)
    with encoders.hidden_torchvision():
        config = transformers.BertConfig(**{**sizes, **layers, **changes}, attn_implementation="eager")
        return Classifier(transformers.BertForSequenceClassification(config), pad=0)


def sentences(count: int, seed: int = 0, pad: int = 0) -> Tensor:
    """Token ids of one to all places."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, count)
    tokens = rng.integers(1, VOCABULARY, (count, LENGTH))
    return torch.from_numpy(np.where(np.arange(LENGTH) < lengths[:, None], tokens, pad))


def gradients(stack: StackedModel, rows: Tensor, tokens: Tensor) -> list[Tensor]:
    leaves = [piece.clone().requires_grad_() for piece in stack.split(rows)]
    logits = stack.logits(leaves, tokens)
    return [logits.detach(), *torch.autograd.grad(logits.sin().sum(), leaves)]


class TestPacking:
    def test_logits_and_gradients_are_those_of_the_padded_model(self) -> None:
        stack = StackedModel(classifier(), pad=0)
        assert stack.packed is not None
        rows = stack.flat() + 0.1 * torch.randn(3, stack.d, generator=torch.Generator().manual_seed(1))
        tokens = sentences(3 * 7).view(3, 7, LENGTH)
        packed = gradients(stack, rows, tokens)
        stack.packed = None
        for name, one, other in zip(["", *stack.names], packed, gradients(stack, rows, tokens), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5, msg=name)

    def test_labels_of_single_models_are_the_same(self) -> None:
        stack, tokens = StackedModel(classifier(), pad=0), sentences(150)
        packed = stack.predict(stack.flat(), tokens)
        with torch.no_grad():
            assert (packed == stack.model(tokens).argmax(1)).all()

    @pytest.mark.parametrize("lengths", [[1], [GROUP_LENGTHS[0]], [5, 13, 40], [40, 40], [1, 24, 25]])
    def test_every_token_has_one_slot_and_one_cell(self, lengths: list[int]) -> None:
        tokens = torch.zeros((2, len(lengths), LENGTH), dtype=torch.int64)
        for sentence, length in enumerate(lengths):
            tokens[0, sentence, :length] = torch.arange(1, length + 1)
            tokens[1, sentence, :1] = 7
        packing = Packing.of(tokens, pad=0)
        used = packing.used[:, 0] > 0
        assert int(used.sum()) == sum(lengths) + len(lengths)
        assert torch.equal(packing.slot_of[packing.cell_of[used]], used.nonzero()[:, 0])
        assert int(packing.real.sum()) == int(used.sum())
        assert (packing.real[packing.cell_of[used]] == 1).all()
        slots = packing.ids.flatten()
        assert sorted(slots[used].tolist()) == sorted(tokens[tokens > 0].tolist())
        assert slots[packing.first].tolist() == tokens[..., 0].flatten().tolist()

    def test_padding_inside_a_sentence_is_left_out_too(self) -> None:
        stack, tokens = StackedModel(classifier(), pad=0), sentences(6, seed=3)
        tokens[:, 2:4] = 0
        with torch.no_grad():
            expected = stack.model(tokens)
        found = stack.logits(stack.split(stack.flat()[None]), tokens[None])[0]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)

    def test_a_sentence_longer_than_the_positions_is_refused(self) -> None:
        stack = StackedModel(classifier(max_position_embeddings=30), pad=0)
        with pytest.raises(BadModel, match="40 tokens, and this encoder has positions for 30"):
            stack.predict(stack.flat(), torch.ones((2, LENGTH), dtype=torch.int64))

    def test_other_models_are_left_to_vmap(self) -> None:
        frozen = classifier()
        frozen.inner.bert.embeddings.requires_grad_(False)
        for model in (classifier(hidden_act="relu"), frozen, torch.nn.Linear(3, 2)):
            assert PackedBert.of(model) is None


class TestUsedWords:
    def setup_method(self) -> None:
        self.stack = StackedModel(classifier(), pad=0)
        self.data = Data(sentences(60), torch.from_numpy(np.random.default_rng(2).integers(0, 2, 60)))
        self.own = shares([np.arange(0, 20), np.arange(20, 27), np.arange(27, 60)])

    def train(self, **values: Any) -> Tensor:
        training = LocalTraining(2, 8, 1e-2, optimizer="adamw", **values)
        return clients.train(
            self.stack,
            cross_entropy,
            self.data,
            self.own,
            self.stack.flat(),
            training,
            np.random.default_rng(5),
        )

    def test_training_the_used_rows_alone_gives_the_same_bits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        narrow = self.train()
        monkeypatch.setattr(clients.UsedWords, "of", staticmethod(lambda *_: None))
        assert torch.equal(narrow, self.train())

    def test_rows_that_no_sentence_uses_stay_as_they_were(self) -> None:
        trained = self.train(steps=1)
        table = self.stack.names.index(WORDS)
        moved = (self.stack.split(trained - self.stack.flat())[table] != 0).any(2)
        for client, (indices, size) in enumerate(zip(self.own.indices, self.own.sizes, strict=True)):
            met = self.data.images[indices[:size]].unique()
            assert set(moved[client].nonzero()[:, 0].tolist()) <= set(met.tolist()) - {0}

    def test_weight_decay_moves_every_row_so_that_all_are_trained(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        monkeypatch.setattr(clients.UsedWords, "of", staticmethod(lambda *_: asked.append(1)))
        decayed = self.train(weight_decay=0.1)
        assert not asked
        assert (decayed != self.stack.flat()).double().mean() > 0.99

    def test_ids_are_renamed_to_rows_that_hold_the_same_words(self) -> None:
        indices = torch.arange(60).view(3, 4, 5)
        used = UsedWords.of(self.stack, self.data, indices)
        weights = torch.randn(4, self.stack.d)
        taken = used.model.split(used.taken(weights))[used.table]
        table = self.stack.split(weights)[used.table]
        for step in range(3):
            for client in range(4):
                before = self.data.images[indices[step, client]]
                after = used.data.images[used.indices[step, client]]
                assert torch.equal(taken[client][after], table[client][before])
                assert torch.equal(after == 0, before == 0)
