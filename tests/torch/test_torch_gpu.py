"""Training steps on a GPU: the same Gram matrix, whatever precision the training is done in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import randeigen.torch  # noqa: E402
from nets import ZOO, Make, cnn, jacobian, losses_of, mlp, transformer  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _in_full() -> Iterator[None]:
    """The oracle's own convolutions would be TF32."""
    torch.manual_seed(0)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def ready(make: Make, n: int = 12) -> tuple[Any, Any]:
    model, inputs = make(n)
    return model.cuda(), tuple(x.cuda() for x in inputs)


def apart(found: Any, wanted: Any) -> float:
    norms = wanted.diagonal().sqrt()
    return float(((found - wanted).abs() / torch.outer(norms, norms)).max())


def gradient(model: Any) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).flatten() for p in trained]
    )


@pytest.mark.parametrize("make", ZOO, ids=lambda make: make.__name__)
def test_gram_matrix_and_gradient_are_those_of_the_rows(make: Make) -> None:
    model, inputs = ready(make)
    losses = losses_of(model(*inputs))
    rows = jacobian(losses, model)
    found = randeigen.torch.gram(losses, model)
    assert found.is_cuda
    assert apart(found, rows @ rows.T) <= 1e-5
    verdict = randeigen.torch.backward(losses, model, eps=0.1)
    wanted = torch.as_tensor(verdict.weights).cuda() @ rows
    assert float((gradient(model) - wanted).norm() / wanted.norm()) <= 1e-4


@pytest.mark.parametrize("make", [mlp, transformer, cnn], ids=lambda make: make.__name__)
def test_tf32_is_for_training_not_for_the_gram_matrix(make: Make) -> None:
    model, inputs = ready(make, 64)
    losses = losses_of(model(*inputs))
    rows = jacobian(losses, model)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        verdict = randeigen.torch.backward(losses, model, eps=0.1)  # its check holds against TF32 gradients
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    norms = torch.as_tensor(verdict.norms).cuda()
    assert float((norms / rows.norm(dim=1) - 1).abs().max()) < 1e-3  # the gradients at the outputs are TF32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [mlp, transformer, cnn], ids=lambda make: make.__name__)
def test_mixed_precision_with_a_scaler_trains(make: Make, dtype: Any) -> None:
    model, inputs = ready(make, 64)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.amp.GradScaler("cuda", init_scale=256.0),
    )
    with torch.autocast("cuda", dtype):
        losses = losses_of(model(*inputs).float())
    rows = jacobian(losses, model)
    verdict = randeigen.torch.backward(scaler.scale(losses), model, eps=0.1)
    wanted = 256 * torch.as_tensor(verdict.weights).cuda() @ rows
    assert float((gradient(model) - wanted).norm() / wanted.norm()) < 3e-2
    scaler.step(optimizer)
    scaler.update()
