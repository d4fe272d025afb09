"""SST-2 with a pretrained encoder: all of it trained, its head alone, or low-rank adapters."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from randeigen.attacks.text import Tokens
from randeigen.errors import BadParameter
from randeigen.lab import datasets, encoders
from randeigen.lab.encoders import Classifier, Encoder
from randeigen.lab.low_rank import add_adapters
from randeigen.lab.tasks import Labels, Task

LENGTH = 64  # tokens of a sentence, start, end and one free place included; longer ones are cut

# The order of the largest variance of 1,000 honest coordinates: on MiniLM without attack it was 4.9e-6 at a
# learning rate of 2e-5 and 3.0e-5 at 5e-5. A study measures its own.
SIGMA = 1e-5


@cache
def sst2(
    encoder: str = "minilm",
    update: Literal["full", "head", "lora"] = "full",
    form: Literal["glue", "sentences"] = "glue",
) -> Task:
    """Sentiment of film reviews: 67,349 phrases to train on (6,920 whole sentences), 872 sentences to test.

    `encoder` is minilm, mpnet, a folder or a name on the hub; `update` says what clients train and send.
    """
    pretrained = encoders.find(encoder)
    train, test = (tokens_of(pretrained, form, split) for split in ("train", "dev"))
    example = _model(pretrained, update)
    names = [name for name, parameter in example.named_parameters() if parameter.requires_grad]
    matrix = example.inner.get_input_embeddings().weight
    same = [name for name, parameter in example.named_parameters() if parameter is matrix]
    embedding = names.index(same[0]) if same[0] in names else None
    sizes = [parameter.numel() for parameter in example.parameters() if parameter.requires_grad]
    kind = type(example.inner).__name__
    total = sum(parameter.numel() for parameter in example.parameters())
    return Task(
        f"sst2:encoder={encoder},update={update},form={form}",
        train,
        test,
        lambda: _model(pretrained, update),
        classes=2,
        text=pretrained.text(embedding),
        optimizer="adamw",
        epochs=1,
        batch=32,
        steps=10,
        rate=5e-5 if update == "full" else 1e-3,
        sigma=SIGMA,
        clients=20,
        rounds=20,
        about={
            "encoder": f"{pretrained.label}, {kind}, {total:,} parameters, {sum(sizes):,} of them trained"
        },
    )


def tokens_of(encoder: Encoder, form: str, split: str) -> tuple[Tokens, Labels]:
    """A part of the data as the encoder's token ids: those beside a copy of it, else from the sentences."""
    if encoder.folder is not None and (path := encoder.folder / tokens_file(form)).is_file():
        with np.load(path, allow_pickle=False) as file:
            return file[f"{split}_tokens"].astype(np.int64), file[f"{split}_labels"].astype(np.int64)
    sentences, labels = datasets.sst2(split, form)
    pad = int(encoder.tokenizer.pad_token_id)
    out = np.full((len(sentences), LENGTH), pad, dtype=np.int64)
    ids = encoder.tokenizer(sentences, truncation=True, max_length=LENGTH - 1)["input_ids"]
    for row, own in zip(out, ids, strict=True):
        row[: len(own)] = own
    return out, labels.astype(np.int64)


def tokens_file(form: str) -> str:
    """The name of the file of token ids beside a copy of an encoder."""
    return f"sst2-{form}.npz"


def write_copy(name: str, folder: Path, form: str = "glue") -> None:
    """Copy an encoder to a folder: weights in half precision, its tokenizer, and the data as token ids.

    For machines with little room or no data: half the size, and nothing else must travel.
    """
    from safetensors.torch import load_file, save_file

    pretrained = encoders.find(name)
    if pretrained.folder is None:
        raise BadParameter(f"encoder={name!r} is on the hub; download it to a folder first.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in pretrained.folder.iterdir():
        if path.suffix in (".json", ".txt") and path.is_file():
            shutil.copyfile(path, folder / path.name)
    weights = load_file(pretrained.folder / "model.safetensors")
    half = {key: value.half() if value.is_floating_point() else value for key, value in weights.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    parts = {split: tokens_of(pretrained, form, split) for split in ("train", "dev")}
    smallest = np.uint16 if len(pretrained.tokenizer) < 1 << 16 else np.uint32
    arrays: dict[str, Any] = {
        f"{split}_tokens": tokens.astype(smallest) for split, (tokens, _) in parts.items()
    }
    arrays |= {f"{split}_labels": labels.astype(np.uint8) for split, (_, labels) in parts.items()}
    np.savez_compressed(folder / tokens_file(form), **arrays)
    (folder / encoders.ORIGIN).write_text(json.dumps({"copy of": f"float16 copy of {pretrained.label}"}))


def _model(encoder: Encoder, update: str) -> Classifier:
    model = encoder.model()
    if update != "full":
        model.inner.base_model.requires_grad_(False)
    if update == "lora":
        add_adapters(model.inner.base_model)
    return model
