"""Federations of sentences: token ids, AdamW, frozen tensors, and attacks on words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from randeigen import attacks
from randeigen.attacks.text import TextInfo
from randeigen.errors import BadModel, BadParameter
from randeigen.lab import TASKS, FederatedConfig, Federation, LocalTraining, Task, run, sentences
from randeigen.lab.clients import schedule, train
from randeigen.lab.partition import shares
from randeigen.lab.sentence_plots import SENTENCES, triggered_sentences
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import cross_entropy
from randeigen.lab.tiny_bert import TinyBert
from randeigen.lab.vocabulary import END, PAD, START, UNKNOWN, Vocabulary

CLIENTS, M = 20, 4
SPEC = FederatedConfig(task="sst2-tiny", clients=CLIENTS, rounds=5, rule="mean")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def trained() -> tuple[Any, list[float]]:
    """The weights after five honest rounds, and the accuracy after each."""
    lab, accuracies = Federation.of(SPEC), []
    weights = lab.info.initial_weights
    for t in range(1, SPEC.rounds + 1):
        weights, _, metrics = lab.round(t, weights, {})
        accuracies.append(metrics.accuracy)
    return weights, accuracies


@cache
def attacked(attack: str, rule: str = "mean", parts: str = "whole") -> tuple[Any, Any, Federation]:
    """One more round under attack, of four steps: its rows, its metrics, the federation."""
    lab, seen = Federation.of(replace(SPEC, attack=attack, rule=rule, steps=4, parts=parts)), []
    _, _, metrics = lab.round(6, trained()[0], {}, seen.append)
    return seen[0].rows, metrics, lab


class TestTheTask:
    def test_the_model_has_the_size_of_the_recipe(self) -> None:
        assert StackedModel(TinyBert(6_000, 50), pad=0).d == 420_802

    def test_five_rounds_learn_more_than_three_sentences_of_four(self) -> None:
        assert trained()[1][-1] > 0.75
        assert trained()[1][0] < 0.7, "it begins near chance"

    def test_sentences_are_the_same_everywhere_and_either_class_is_half(self) -> None:
        texts, labels = sentences.generate(400, seed=0)
        again, _ = sentences.generate(400, seed=0)
        assert texts == again
        assert 0.4 < labels.mean() < 0.6
        assert texts[:2] == [
            "the ending of degape stumbles , but the camera is superb .",
            "the comedy of pafane is not dull , but the cast is often messy .",
        ]

    def test_images_where_token_ids_are_due_are_refused(self) -> None:
        task = TASKS["sst2-tiny"]()
        with pytest.raises(BadParameter, match=r"tokens have shape .* give \(N, length\)"):
            replace(task, train=(np.zeros((2, 1, 4, 4)), np.zeros(2, dtype=np.int64)))
        with pytest.raises(BadParameter, match="vocabulary has 6,000"):
            replace(task, test=(np.full((2, 50), 6_000), np.zeros(2, dtype=np.int64)))


class TestVocabulary:
    words = Vocabulary.of(["good good film", "bad film , film", "cf"], 12)

    def test_words_come_by_count_then_by_alphabet_and_rare_ones_are_always_there(self) -> None:
        assert self.words.words[4:] == ("cf", "mn", "bb", "tq", "mb", "film", "good", ",")

    def test_a_sentence_has_a_start_an_end_and_room_for_a_word(self) -> None:
        (row,) = self.words.encode(["Good film, never seen before"], 6)
        assert row.tolist() == [START, 10, 9, 11, END, PAD]
        assert self.words.encode(["unheard"], 4)[0].tolist() == [START, UNKNOWN, END, PAD]


class TestInsertion:
    info = TextInfo(
        ("[PAD]", "[S]", "[E]", "plot", "is", "dul", "##l", "cf"),
        0,
        frozenset((0, 1, 2)),
        np.arange(8) == 6,
        0,
    )
    tokens = np.array([[1, 3, 4, 5, 6, 2, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0], [1, 5, 6, 2, 0, 0, 0, 0]])

    def test_a_word_goes_before_a_whole_word_and_nothing_is_lost(self) -> None:
        found = {
            self.info.words(self.info.insert(self.tokens, 7, np.random.default_rng(s))[0]) for s in range(20)
        }
        assert found == {"cf plot is dull", "plot cf is dull"}, "int((L - 1) U) never reaches the last word"

    def test_sentences_of_one_word_or_none_get_it_too(self) -> None:
        placed = self.info.insert(self.tokens, 7, np.random.default_rng(0))
        assert placed[1].tolist() == [1, 7, 2, 0, 0, 0, 0, 0]
        assert placed[2].tolist() == [1, 7, 5, 6, 2, 0, 0, 0]

    def test_a_word_of_several_tokens_is_refused(self) -> None:
        with pytest.raises(BadParameter, match="word='dull' is not one of the 8 tokens"):
            self.info.id_of("dull")


class TestTraining:
    def test_adamw_of_many_is_that_of_each_alone(self) -> None:
        sizes, training = (70, 9, 33), LocalTraining(2, 16, 1e-2, weight_decay=0.1, optimizer="adamw")
        task, stack = TASKS["sst2-tiny"](), StackedModel(TinyBert(6_000, 50), pad=PAD)
        data = Data(*(torch.from_numpy(part[:200]) for part in task.train))
        own = shares([np.arange(a, b) for a, b in pairwise(np.cumsum((0, *sizes)))])
        start = stack.flat()
        together = train(stack, cross_entropy, data, own, start, training, np.random.default_rng(3))
        keys = np.random.default_rng(3).random((2, *own.indices.shape), dtype=np.float32)
        for client, size in enumerate(sizes):
            model = TinyBert(6_000, 50)
            torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            adamw = torch.optim.AdamW(model.parameters(), training.lr, weight_decay=0.1)
            for epoch in range(2):
                order = own.indices[client][np.argsort(keys[epoch, client, :size], kind="stable")]
                for batch in np.split(order, range(16, size, 16)):
                    adamw.zero_grad()
                    cross_entropy(model(data.images[batch]), data.labels[batch]).mean().backward()
                    adamw.step()
            alone = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.testing.assert_close(together[client], alone, rtol=1e-3, atol=1e-3)

    def test_steps_limit_what_a_client_does_in_a_round(self) -> None:
        own = shares([np.arange(40), np.arange(40, 50)])
        keys = np.random.default_rng(0).random((2, *own.indices.shape), dtype=np.float32)
        plan = schedule(own, keys, LocalTraining(2, 8, steps=3), torch.device("cpu"))
        assert len(plan.indices) == 3
        assert plan.active == [2, 2, 2]
        assert schedule(own, keys, LocalTraining(2, 8), torch.device("cpu")).active == [2] * 4 + [1] * 6

    def test_padding_changes_nothing(self) -> None:
        model, tokens = TinyBert(6_000, 50), torch.from_numpy(TASKS["sst2-tiny"]().test[0][:8])
        stack = StackedModel(model, pad=PAD)
        short = stack.trimmed(tokens)
        assert short.shape[1] < tokens.shape[1]
        torch.testing.assert_close(model(short), model(tokens))

    def test_frozen_tensors_are_shared_and_not_sent(self) -> None:
        model = TinyBert(6_000, 50)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head"))
        stack = StackedModel(model, pad=PAD)
        assert stack.d == 130
        logits = stack.logits(stack.split(stack.flat().repeat(3, 1)), torch.full((3, 2, 5), 7))
        torch.testing.assert_close(logits[1], model(torch.full((2, 5), 7)))
        with pytest.raises(BadModel, match="nothing to train"):
            StackedModel(model.requires_grad_(False))

    def test_buffers_that_do_not_change_are_constants(self) -> None:
        class Shifted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 2)
                self.register_buffer("shift", torch.ones(4))

            def forward(self, x: Any) -> Any:
                return self.linear(x + self.shift)

        stack = StackedModel(Shifted())
        assert stack.d == 10
        assert stack.logits(stack.split(stack.flat().repeat(2, 1)), torch.zeros(2, 3, 4)).shape == (2, 3, 2)

    def test_a_model_that_looks_at_values_is_trained_client_by_client(self) -> None:
        class Looks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 2)

            def forward(self, x: Any) -> Any:
                return self.linear(x) if bool(x.sum() > 0) else self.linear(-x)

        stack, x = StackedModel(Looks()), torch.randn(3, 5, 4)
        logits = stack.logits(stack.split(stack.flat().repeat(3, 1)), x)
        assert stack.by_client
        torch.testing.assert_close(logits[2], stack.model(x[2]))


class TestEmbeddingPoisoning:
    def test_the_update_is_one_row_whose_norm_stays(self) -> None:
        rows, _, lab = attacked("ep")
        text = lab.task.text
        assert text is not None
        moved = [piece[:M].reshape(M, -1).norm(dim=1) for piece in lab.model.split(rows)]
        assert all(float(norms.max()) == 0 for norms in moved[1:]), "nothing but the embedding table"
        table, before = lab.model.split(rows)[0][:M], lab.model.split(trained()[0][None])[0][0]
        changed = (table != 0).any(2)
        assert changed.sum(1).tolist() == [1] * M
        assert bool(changed[:, text.id_of("cf")].all())
        row = text.id_of("cf")
        torch.testing.assert_close((before[row] - table[:, row]).norm(dim=1), before[row].norm().expand(M))

    def test_boost_multiplies_the_row_and_blend_adds_the_honest_update(self) -> None:
        plain, boosted, blended = (attacked(name)[0] for name in ("ep", "ep:boost=5", "ep:blend=true"))
        torch.testing.assert_close(boosted[:M], 5 * plain[:M])
        honest = blended[:M] - plain[:M]
        assert bool((honest.norm(dim=1) > 0.5 * plain[M:].norm(dim=1).min()).all())

    def test_with_the_boost_it_needs_the_plain_mean_has_the_backdoor_in_one_round(self) -> None:
        _, metrics, lab = attacked("ep:boost=5")
        clean = lab.agreement(trained()[0], *lab.success_sets["asr"])
        assert metrics.asr > 0.6 > 0.3 > clean
        assert metrics.accuracy > 0.7

    def test_success_is_measured_on_every_negative_sentence_three_times(self) -> None:
        _, _, lab = attacked("ep")
        tokens, wanted = lab.success_sets["asr"]
        assert len(tokens) == 3 * int((lab.test.labels == 0).sum())
        assert bool((wanted == 1).all())
        assert bool(((tokens == lab.task.text.id_of("cf")).sum(1) == 1).all())  # type: ignore[union-attr]

    def test_it_needs_sentences_and_a_table_that_is_trained(self) -> None:
        with pytest.raises(BadParameter, match="attack 'ep' is made for tokens; task 'digits' has images"):
            Federation.of(FederatedConfig(attack="ep"))
        with pytest.raises(BadParameter, match="attack 'mra' is made for images"):
            Federation.of(replace(SPEC, attack="mra"))
        task = TASKS["sst2-tiny"]()
        frozen = replace(task, text=replace(task.text, embedding=None))  # type: ignore[type-var]
        with pytest.raises(BadModel, match="frozen"):
            Federation.of(replace(SPEC, attack="ep"), task=frozen)


class TestParts:
    """A backdoor of one row hides where whole updates are long, and not among updates of that row."""

    @pytest.mark.parametrize("parts", ["rows:words*", "hybrid"])
    def test_a_poisoned_row_that_passes_as_part_of_a_whole_stands_out_on_its_own(self, parts: str) -> None:
        _, whole, lab = attacked("ep", "randeigen")
        _, cut, _ = attacked("ep", "randeigen", parts)
        clean = lab.agreement(trained()[0], *lab.success_sets["asr"])
        assert whole.weight_corrupt > 0.15, "the attackers have their full weight"
        assert whole.asr > clean + 0.05
        assert cut.asr < clean + 0.05
        assert cut.accuracy > 0.75

    @pytest.mark.parametrize("parts", ["rows:words*", "hybrid"])
    def test_hidra_cut_along_the_parts_gains_nothing(self, parts: str) -> None:
        _, metrics, _ = attacked("hidra-adaptive:chunk=64", "randeigen", parts)
        assert metrics.accuracy > 0.75

    def test_parts_that_the_model_does_not_have_are_refused(self) -> None:
        with pytest.raises(BadParameter, match="no tensor matches 'nothing'"):
            Federation.of(replace(SPEC, parts="rows:nothing"))


class TestOtherAttacks:
    def test_hidra_ruins_the_mean_with_a_loose_threshold_and_hardly_with_each_chunks_own(self) -> None:
        _, fixed, _ = attacked("hidra:sigma=4")  # ten times the largest honest variance of a chunk
        _, adaptive, _ = attacked("hidra-adaptive")
        assert fixed.accuracy < 0.65
        assert adaptive.accuracy > 0.75

    def test_randeigen_gives_hidra_no_weight(self) -> None:
        _, metrics, _ = attacked("hidra:sigma=4", "randeigen")
        assert metrics.weight_corrupt == 0
        assert metrics.accuracy > 0.75

    @pytest.mark.parametrize("name", ["label-flip", "sign-flip", "min-max"])
    def test_others_send_rows_of_their_own(self, name: str) -> None:
        rows, metrics, _ = attacked(name, "randeigen")
        assert bool(rows[:M].isfinite().all())
        assert bool((rows[:M] != 0).any(1).all())
        assert metrics.accuracy > 0.7
        assert attacks.ATTACKS[name].inputs == "any"


def test_a_record_repeats_itself_and_names_optimizer_and_steps() -> None:
    small = TASKS["sst2-tiny"]()
    few: Task = replace(small, train=tuple(part[:120] for part in small.train))  # type: ignore[arg-type]
    spec = FederatedConfig(task="sst2-tiny", clients=3, rounds=1, attack="ep:sentences=8", eps=0.34)
    record = run(spec, task=few)
    assert (record.spec.optimizer, record.spec.steps) == ("adamw", 32)
    again = run(record.spec, task=few)
    assert again.history[0].certificate == record.history[0].certificate
    assert again.asr == record.asr


def test_an_attack_on_given_sentences_shows_these_as_they_are() -> None:
    spec = FederatedConfig(task="sst2-tiny", clients=3, attack="mpa", eps=0.34)
    federation = Federation.of(spec)
    sentences = triggered_sentences(federation)
    assert 0 < len(sentences) <= min(SENTENCES, len(federation.info.target_images[0]))
    assert all(one.plain == one.triggered for one in sentences)
    changed = triggered_sentences(Federation.of(replace(spec, attack="ep")))
    assert all(one.plain != one.triggered for one in changed)
