"""A Lightning trainer makes robust steps with one callback, and is itself again after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from trainers import import_or_skip

pytestmark = pytest.mark.filterwarnings("ignore")
lightning = import_or_skip("lightning.pytorch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import randeigen.torch  # noqa: E402
from randeigen import BadFraction, BadModel  # noqa: E402
from randeigen.torch.lightning import RobustSteps  # noqa: E402


class Classifier(lightning.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self, reduction: str = "none", automatic: bool = True) -> None:
        super().__init__()
        self.net = nn.Linear(6, 2)
        self.criterion = nn.CrossEntropyLoss(reduction=reduction)
        self.automatic_optimization = automatic
        self.seen: list[Any] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return self.criterion(self.net(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.seen.append(torch.cat([p.grad.flatten() for p in self.parameters()]).clone())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(n: int = 64) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    x[:3], y[:3] = 40.0, 0  # poison
    return x, y


def fit(model: Any, *callbacks: Any, batch: int = 64, **options: Any) -> Any:
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=list(callbacks), logger=False, enable_checkpointing=False, barebones=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", **options
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(*data()), batch))
    return trainer


def test_the_step_is_that_of_backward() -> None:
    torch.manual_seed(0)
    model = Classifier()
    x, y = data()
    losses = model.criterion(model.net(x), y)
    verdict = randeigen.torch.backward(losses, model, eps=0.1, groups=y)
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
    model.zero_grad()
    steps = RobustSteps(eps=0.1, groups=lambda batch: batch[1])
    trainer = fit(model, steps)
    torch.testing.assert_close(model.seen[0], wanted)
    assert steps.verdict is not None
    assert steps.verdict.left_out.tolist() == verdict.left_out.tolist() == [0, 1, 2]
    assert trainer.callback_metrics["robust/left_out"] == 3
    assert trainer.callback_metrics["robust/bias_bound"] > 0


def test_accumulated_batches_are_judged_one_by_one_and_divided_as_lightning_does() -> None:
    torch.manual_seed(0)
    model, plain = Classifier(), Classifier("mean")
    plain.load_state_dict(model.state_dict())
    fit(model, RobustSteps(eps=0.0), batch=16, accumulate_grad_batches=4)
    fit(plain, batch=16, accumulate_grad_batches=4)
    torch.testing.assert_close(model.seen, plain.seen)


def test_the_module_is_itself_again_afterwards() -> None:
    model = Classifier()
    fit(model, RobustSteps(eps=0.1))
    assert "backward" not in vars(model)


def test_mistakes_are_told() -> None:
    with pytest.raises(BadFraction, match="exactly one of eps"):
        RobustSteps()
    with pytest.raises(BadModel, match='reduction="none"'):
        fit(Classifier("mean"), RobustSteps(eps=0.1))
    with pytest.raises(BadModel, match=r"call randeigen\.torch\.backward in training_step"):
        fit(Classifier(automatic=False), RobustSteps(eps=0.1))


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "pytorch-trainer.md").read_text()
    code = page.split("## With Lightning")[1].split("```py\n")[1].split("```")[0]
    exec(code, {"__name__": "page"})
