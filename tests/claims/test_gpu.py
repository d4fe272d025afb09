"""On a GPU nothing changes but the time. Marked gpu; the record of a run is under results/."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian, with_byzantine
from randeigen.geometry import measure
from randeigen.rows import as_rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def on_gpu(rows: np.ndarray, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(rows).to("cuda", dtype)


@pytest.mark.parametrize("n", [3, 16, 100, 128, 129, 300])
@pytest.mark.parametrize("d", [1, 63, 5000, 70_001])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_table_is_that_of_float64(n: int, d: int, offset: float) -> None:
    rows = on_gpu(gaussian(n, d) + offset)
    table = measure(as_rows(rows), "gram")[0]
    exact = rows.double()
    exact = exact - exact.median(0).values
    between = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy() ** 2
    scale = max(float(between.max()), 1e-12)
    np.testing.assert_allclose(table.squared_distances(), between, atol=3e-5 * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_answer_is_the_cpus_in_the_callers_dtype_and_device(dtype: Any) -> None:
    rows = on_gpu(with_byzantine(gaussian(50, 3000), 5, "sqrt_d"), dtype)
    here, there = randeigen.aggregate(rows, eps=0.1), randeigen.aggregate(rows.cpu(), eps=0.1)
    assert here.mean.dtype == dtype
    assert here.mean.is_cuda
    np.testing.assert_allclose(here.weights, there.weights, atol=1e-4)
    np.testing.assert_allclose(
        here.mean.double().cpu(), there.mean.double(), atol=2e-2 if dtype.itemsize == 2 else 1e-4
    )


@pytest.mark.parametrize("size", [1e15, 1e25, 1e30, 3e38, float("nan"), float("inf")])
def test_extreme_rows_do_not_blind_it(size: float) -> None:
    rows = on_gpu(gaussian(40, 5000))
    rows[:3] = size
    result = randeigen.aggregate(rows, f=4)
    assert not result.kept[:3].any()
    assert float(torch.linalg.norm(result.mean - rows[3:].mean(0))) < 1


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_honest_rows_of_any_size(scale: float) -> None:
    rows = gaussian(20, 1000)
    result = randeigen.aggregate(on_gpu(rows * scale), f=2)
    np.testing.assert_allclose(result.mean.double().cpu() / scale, rows.mean(0), atol=0.1)


def test_rows_that_are_not_contiguous_are_read_as_they_are() -> None:
    rows = on_gpu(gaussian(30, 4000))
    for view in (rows[:, ::2], rows.T.contiguous().T, rows[::3]):
        here, there = randeigen.aggregate(view, eps=0.1), randeigen.aggregate(view.cpu(), eps=0.1)
        np.testing.assert_allclose(here.mean.cpu(), there.mean, atol=1e-4)


def test_state_dicts_stay_on_their_device() -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20)).cuda() for _ in range(9)]
    result = randeigen.aggregate([model.state_dict() for model in models], eps=0.2)
    models[0].load_state_dict(result.mean)
    assert all(value.is_cuda for value in result.mean.values())


@pytest.mark.parametrize("kind", ["sketch", "gaussian"])
def test_a_sketch_is_the_same_on_every_device(kind: str) -> None:
    rows = on_gpu(gaussian(12, 9000))
    here, there = (measure(as_rows(r), kind, seed=5)[0].squared_distances() for r in (rows, rows.cpu()))
    np.testing.assert_allclose(here, there, rtol=2e-3)


def test_memory_beyond_input_and_answer_stays_small() -> None:
    rows = torch.randn(100, 2**22, device="cuda")
    randeigen.aggregate(rows[:, :1000], eps=0.1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    randeigen.aggregate(rows, eps=0.1)
    assert torch.cuda.max_memory_allocated() - before - 4 * 2**22 < 64e6


@pytest.mark.parametrize(
    ("side", "inside", "out", "k", "pad"),
    [(28, 1, 30, 5, 2), (14, 30, 30, 5, 2), (28, 1, 20, 5, 0), (12, 20, 50, 5, 0)],
)
def test_a_fused_block_is_convolution_relu_and_pooling(
    side: int, inside: int, out: int, k: int, pad: int
) -> None:
    from torch.nn import functional

    from randeigen.lab import stacked_cuda

    torch.manual_seed(0)
    images = torch.randn(3, 7, side, side, inside, device="cuda", requires_grad=True)
    kernels = torch.randn(3, out, inside, k, k, device="cuda", requires_grad=True)
    bias = torch.randn(3, out, device="cuda", requires_grad=True)
    filled = functional.pad(images, (0, 0 if inside == 1 else 32 - inside))
    assert stacked_cuda.takes(filled, kernels, pad)
    found = stacked_cuda.block(filled, kernels, bias, pad)
    assert not found[..., out:].any()
    found = found[..., :out]
    exact = torch.stack(
        [
            functional.max_pool2d(
                functional.relu(functional.conv2d(x.permute(0, 3, 1, 2), w, b, padding=pad)), 2
            ).permute(0, 2, 3, 1)
            for x, w, b in zip(images.double(), kernels.double(), bias.double(), strict=True)
        ]
    )
    up = torch.randn_like(found)
    off = (found - exact).detach().norm() / exact.detach().norm()
    ours = torch.autograd.grad(found, (images, kernels, bias), up)
    theirs = torch.autograd.grad(exact, (images, kernels, bias), up.double())
    assert float(off) < 5e-3  # bfloat16
    for mine, right in zip(ours, theirs, strict=True):
        assert float((mine - right).norm() / right.norm()) < 0.1  # pooling may choose a near twin


@pytest.mark.parametrize("name", ["convnet", "mnistnet", "small_convnet"])
@pytest.mark.parametrize(("momentum", "rho"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.3)])
def test_fused_steps_are_those_of_autograd_to_their_precision(name: str, momentum: float, rho: float) -> None:
    """Two steps of three clients, the last of which has finished; pooling may choose near twins."""
    from randeigen.lab import models
    from randeigen.lab.config import LocalTraining
    from randeigen.lab.stacked_model import StackedModel
    from randeigen.lab.stacked_steps import FusedSteps, applies
    from randeigen.lab.tasks import cross_entropy

    torch.manual_seed(0)
    side, batch, rates = 8 if name == "small_convnet" else 28, 20, torch.tensor([0.1, 0.05, 0.0]).cuda()
    model = StackedModel(getattr(models, name)().cuda())
    pieces = [piece.clone() for piece in model.split(model.flat().expand(3, -1))]
    anchors = [piece + 0.01 * torch.randn_like(piece) for piece in pieces] if rho else []
    images, labels = torch.randn(50, 1, side, side).cuda(), torch.randint(10, (50,)).cuda()
    training = LocalTraining(momentum=momentum, weight_decay=5e-4 if momentum else 0.0)
    assert applies(model, pieces, images, batch)
    fused = FusedSteps(model.model, pieces, anchors, training, rho, cross_entropy, (batch, side, side))
    right, moving = [piece.double() for piece in pieces], [piece.double() * 0 for piece in pieces]
    reference = StackedModel(getattr(models, name)().double())
    for indices in torch.randint(50, (2, 3, batch)).cuda():
        weights = torch.full((3, batch), 1 / batch).cuda()
        fused.step(*((images, indices) if rho else (images[indices], None)), labels[indices], weights, rates)
        leaves = [piece.requires_grad_() for piece in right]
        logits = reference.logits([leaf.cpu() for leaf in leaves], images[indices].double().cpu())
        losses = cross_entropy(logits.flatten(0, 1), labels[indices].flatten().cpu())
        grads = torch.autograd.grad(losses.sum() / batch, leaves)
        right = [piece.detach() for piece in right]
        for k, grad in enumerate(grads):
            pull = 2 * rho * (right[k] - anchors[k]) if rho else 0.0
            moving[k] = momentum * moving[k] + grad + training.weight_decay * right[k] + pull
            right[k] = right[k] - rates.view(-1, *[1] * (grad.ndim - 1)) * moving[k]
    for start, mine, exact in zip(pieces, fused.pieces, right, strict=True):
        assert torch.equal(mine[2], start[2])
        assert float((mine - exact).norm() / (exact - start).norm()) < 0.25


def federation(attack: str, partition: str, **more: Any) -> Any:
    from randeigen import lab

    return lab.FederatedConfig(
        task="digits", attack=attack, rule="mean", eps=0.2, rounds=3, clients=20, partition=partition, **more
    )


def off_by(here: Any, there: Any) -> float:
    """The largest relative distance of any client's update."""
    apart = (here.double().cpu() - there.double()).norm(dim=1)
    return float((apart / there.double().norm(dim=1)).max())


PARTITIONS, ATTACKED = ("iid", "dirichlet"), ("none", "dba", "mpa")


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("attack", ATTACKED)
def test_in_float32_a_federation_on_a_gpu_is_the_one_on_a_cpu(
    attack: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor cores round to bfloat16 and TF32; without them both devices take the same path."""
    from contextlib import nullcontext

    from randeigen import lab
    from randeigen.lab import clients, stacked_cuda

    monkeypatch.setattr(stacked_cuda, "takes", lambda *block: False)
    monkeypatch.setattr(clients, "tensor_cores", lambda device: nullcontext())
    spec = federation(attack, partition)
    first = [lab.Federation.of(spec, device=device) for device in ("cuda", "cpu")]
    here, there = (one.rows(1, one.info.initial_weights, *one.participants(1)) for one in first)
    assert off_by(here, there) < 1e-3
    assert abs(lab.run(spec, device="cuda").accuracy - lab.run(spec).accuracy) < 0.01


@pytest.mark.parametrize("partition", PARTITIONS)
def test_with_tensor_cores_one_step_is_that_of_a_cpu_to_their_precision(partition: str) -> None:
    """A batch as large as any client's share: every client takes one step."""
    from randeigen import lab

    spec = federation("none", partition, epochs=1, batch=1297)
    both = [lab.Federation.of(spec, device=device) for device in ("cuda", "cpu")]
    here, there = (one.rows(1, one.info.initial_weights, *one.participants(1)) for one in both)
    assert off_by(here, there) < 0.1
    assert off_by(here.mean(0, keepdim=True), there.mean(0, keepdim=True)) < 0.03


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("attack", ATTACKED)
def test_with_tensor_cores_a_federation_learns_as_on_a_cpu_and_repeats_to_the_bit(
    attack: str, partition: str
) -> None:
    """Early training amplifies rounding: on a CPU, initial weights off by a factor 1 ± 1e-3 move the accuracy
    after three rounds of MPA, which boosts what ten images taught, by up to 5 points."""
    from randeigen import lab

    spec = federation(attack, partition)
    here, there, again = (lab.run(spec, device=device) for device in ("cuda", "cpu", "cuda"))
    assert abs(here.accuracy - there.accuracy) < (0.1 if attack == "mpa" else 0.03)
    assert [one.accuracy for one in again.history] == [one.accuracy for one in here.history]
    assert [one.certificate for one in again.history] == [one.certificate for one in here.history]
