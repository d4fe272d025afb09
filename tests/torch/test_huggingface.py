"""Hugging Face's Trainer makes robust steps as a RobustTrainer: classes, tokens and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from trainers import import_or_skip

pytestmark = pytest.mark.filterwarnings("ignore")
import_or_skip("accelerate")
transformers = import_or_skip("transformers", "Trainer", "GPT2LMHeadModel", "BertForSequenceClassification")

import torch  # noqa: E402

from randeigen import BadFraction, BadModel  # noqa: E402
from randeigen.torch.huggingface import RobustTrainer, losses_of  # noqa: E402

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def encoder(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=12, **SMALL, **options)
    return transformers.BertForSequenceClassification(config)


def sentences(n: int = 24, labels: Any = None) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 30, (n, 8), generator=generator)
    labels = (tokens[:, 1] > 15).long() if labels is None else labels
    return [
        {"input_ids": t, "attention_mask": torch.ones_like(t), "labels": y}
        for t, y in zip(tokens, labels, strict=True)
    ]


def trainer(folder: Path, model: Any, rows: Any, kind: Any = RobustTrainer, **options: Any) -> Any:
    arguments = {key: options.pop(key) for key in list(options) if key not in ROBUST}
    settings = transformers.TrainingArguments(
        str(folder), report_to=[], use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True,
        learning_rate=0.01, lr_scheduler_type="constant", max_grad_norm=0.0, optim="sgd", seed=0,
        **{"per_device_train_batch_size": 24, "num_train_epochs": 1, **arguments},
    )  # fmt: skip
    return kind(model=model, args=settings, train_dataset=rows, **options)


ROBUST = {"eps", "f", "rule", "by_label", "directions", "on_excess", "losses"}


def weights(model: Any) -> Any:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("batch", [24, 6])
def test_without_corruption_it_trains_as_the_trainer_does(tmp_path: Path, batch: int) -> None:
    plain, robust = encoder(), encoder()
    accumulated = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 24 // batch}
    trainer(tmp_path, plain, sentences(), transformers.Trainer).train()
    trainer(tmp_path, robust, sentences(), eps=0.0, **accumulated).train()
    torch.testing.assert_close(weights(robust), weights(plain), rtol=1e-4, atol=1e-6)


def test_the_verdict_is_kept_and_logged(tmp_path: Path) -> None:
    chief = trainer(tmp_path, encoder(), sentences(), eps=0.1, by_label=True, num_train_epochs=2)
    chief.train()
    assert chief.verdict is not None
    assert {group.label for group in chief.verdict.groups} <= {0, 1, "small groups"}
    logged = [line for line in chief.state.log_history if "loss" in line]
    assert len(logged) == 2
    assert all(line["bias_bound"] > 0 and line["left_out"] >= 0 for line in logged)


def test_numbers_and_classes_that_hold_together_have_losses_too(tmp_path: Path) -> None:
    for count, labels in ((1, torch.randn(24)), (3, torch.randint(0, 2, (24, 3)).float())):
        plain, robust = encoder(num_labels=count), encoder(num_labels=count)
        trainer(tmp_path, plain, sentences(labels=labels), transformers.Trainer).train()
        trainer(tmp_path, robust, sentences(labels=labels), eps=0.0).train()
        torch.testing.assert_close(weights(robust), weights(plain), rtol=1e-4, atol=1e-6)


def test_a_causal_model_is_judged_by_its_next_tokens(tmp_path: Path) -> None:
    def language() -> Any:
        torch.manual_seed(0)
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(vocab_size=30, n_positions=12, n_embd=16, n_layer=1, n_head=2, **off)
        return transformers.GPT2LMHeadModel(config)

    rows = sentences()
    for row in rows:
        row["labels"] = row["input_ids"].clone()
    plain, robust = language(), language()
    usual = trainer(tmp_path, plain, rows, transformers.Trainer)
    usual.model_accepts_loss_kwargs = False  # else it counts the first token too when it divides the loss
    usual.train()
    chief = trainer(tmp_path, robust, rows, eps=0.0)
    chief.train()
    torch.testing.assert_close(weights(robust), weights(plain), rtol=1e-3, atol=1e-5)
    assert chief.verdict.weights.size == 24


def test_tokens_without_a_label_do_not_count() -> None:
    logits, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    labels[0, 2:], labels[1] = -100, -100
    found = losses_of(logits, labels)
    assert found[1] == 0
    torch.testing.assert_close(found[0], torch.nn.functional.cross_entropy(logits[0, :2], labels[0, :2]))


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadFraction, match="exactly one of eps"):
        trainer(tmp_path, encoder(), sentences())
    rows = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in sentences()]
    with pytest.raises(BadModel, match="no labels to judge by, found input_ids"):
        trainer(tmp_path, encoder(), rows, eps=0.1).train()
    mean = trainer(tmp_path, encoder(), sentences(), eps=0.1, losses=lambda outputs, labels: outputs.loss)
    with pytest.raises(BadModel, match='reduction="none"'):
        mean.train()


def test_dropped_out_layers_of_a_model_in_training_mode_are_no_obstacle(tmp_path: Path) -> None:
    model = encoder()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    trainer(tmp_path, model, sentences(), eps=0.1).train()


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "pytorch-trainer.md").read_text()
    code = page.split("## With Hugging Face's Trainer")[1].split("```py\n")[1].split("```")[0]
    exec(code, {"__name__": "page"})
