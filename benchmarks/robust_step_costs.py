"""A robust training step costs at most 3 plain steps and 2 times their memory.

    python -m benchmarks.robust_step_costs [--device cuda] [--only cnn] [--out results/robust-step-cpu.json]

Three nets: the paper's CNN at batch 128, a ResNet-18 with GroupNorm at batch 64 (32×32 images), a 6-layer
encoder of BERT's size at batch 32 (128 tokens). Beside the plain step and `randeigen.torch.backward`:
TorchJD's autogram (Gram matrix, then a weighted backward pass) and the full matrix of per-example gradients
(torch.func), where they fit. Memory is the step's own: the peak beyond model and data. On a CPU every
measurement has a process of its own, on a GPU every net. Exits 1 if the claim does not hold. Run it with
nothing else running.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import randeigen.torch
from benchmarks.nets import Encoder, resnet
from randeigen import timing as bench
from randeigen.lab.models import convnet
from randeigen.torch import group_verdict
from studies.provenance import made_with

TIME_LIMIT, MEMORY_LIMIT = 3.0, 2.0
SEED = 0
WARM, REPEATS = {"cpu": 1, "cuda": 5}, {"cpu": 20, "cuda": 200}  # steps on a GPU take milliseconds
METHODS = ("plain", "robust", "autogram", "full matrix")


def make(net: str, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, a batch and its labels."""
    torch.manual_seed(SEED)
    model: nn.Module
    if net == "cnn":
        model, x, classes = convnet(), torch.randn(128, 1, 28, 28), 10
    elif net == "resnet":
        model, x, classes = resnet(), torch.randn(64, 3, 32, 32), 10
    else:
        model, x, classes = Encoder(), torch.randint(30522, (32, 128)), 2
    y = torch.randint(classes, (x.shape[0],))
    return model.to(device), x.to(device), y.to(device)


NETS = ("cnn", "resnet", "encoder")


def step(method: str, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """One training step up to the filled `.grad`."""
    criterion = nn.CrossEntropyLoss(reduction="none")
    judge = randeigen.RandEigen(0.05)

    def weigh(gram: Tensor) -> Tensor:
        labels = group_verdict.as_groups(None, len(gram))
        verdict = group_verdict.judge(gram.double().cpu().numpy(), judge, labels)
        return torch.as_tensor(verdict.weights).to(gram)

    def plain() -> None:
        model.zero_grad()
        criterion(model(x), y).mean().backward()

    def robust() -> Any:
        model.zero_grad()
        return randeigen.torch.backward(criterion(model(x), y), model, rule=judge)

    if method == "autogram":
        from torchjd.autogram import Engine

        engine = Engine(model, batch_dim=0)

        def autogram() -> None:
            model.zero_grad()
            losses = criterion(model(x), y)
            losses.backward(weigh(engine.compute_gramian(losses)))

        return autogram

    def full() -> None:
        model.zero_grad()
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(parameters: Any, x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(model, parameters, (x[None],))
            one: Tensor = criterion(out, y[None])[0]
            return one

        rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
        gram = sum(rows[name].flatten(1) @ rows[name].flatten(1).T for name in rows)
        weights = weigh(gram)
        for name, p in model.named_parameters():
            p.grad = torch.tensordot(weights, rows[name], 1)

    return {"plain": plain, "robust": robust, "full matrix": full}[method]


def measure(net: str, method: str, device: str, what: str, budget: float) -> dict[str, float]:
    """The step's peak memory, its time, or both. Turns are taken with a plain step: both meet one machine."""
    model, x, y = make(net, device)
    run = step(method, model, x, y)

    def once(run: Callable[[], Any]) -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, time.process_time() - cpu

    for _ in range(WARM[device]):
        once(run)
    found = {}
    if what != "time":
        model.zero_grad()
        gc.collect()
        if device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)
        with bench.Peak(device) as peak:
            once(run)
        found["mb"] = peak.bytes / 1e6
    if what == "memory":
        return found
    plain = step("plain", *make(net, device))
    for _ in range(WARM[device]):
        once(plain)
    pairs = [(once(plain), once(run))]
    while len(pairs) < REPEATS[device] and sum(a[0] + b[0] for a, b in pairs) < budget:
        pairs.append((once(plain), once(run)))
    return found | {
        "plain_steps": statistics.median(b[0] / a[0] for a, b in pairs),
        "plain_steps_of_cpu_time": statistics.median(b[1] / a[1] for a, b in pairs),
        "seconds": statistics.median(b[0] for _, b in pairs),
        "best_seconds": min(b[0] for _, b in pairs),
        "repeats": len(pairs),
    }


def measure_all(net: str, methods: list[str], device: str, what: str, budget: float) -> dict[str, Any]:
    """One method after the other; one that fails says why."""
    found: dict[str, Any] = {}
    for method in methods:
        try:
            found[method] = measure(net, method, device, what, budget)
        except Exception as error:
            found[method] = {"error": f"{type(error).__name__}: {error}"[:200]}
        gc.collect()
    return found


def elsewhere(net: str, methods: list[str], device: str, what: str, budget: float) -> dict[str, Any]:
    """The same in another process. Large blocks go back to the system when freed: the peak is the step's."""
    command = [sys.executable, "-m", "benchmarks.robust_step_costs"]
    command += ["--device", device, "--one", net, what, str(budget)]
    command += ["--methods", *methods]
    small = {"MALLOC_MMAP_THRESHOLD_": "131072"} if what == "memory" else {}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **small})
    if done.returncode:
        reason = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
        return {method: {"error": reason[:200]} for method in methods}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fits(net: str, device: str) -> bool:
    """Whether n·d numbers and as many again find room."""
    model, x, _ = make(net, "cpu")
    needed = 2.5 * 4 * x.shape[0] * sum(p.numel() for p in model.parameters())
    if device == "cuda":
        return needed < torch.cuda.mem_get_info()[0]
    return needed < os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=NETS, action="append")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=METHODS)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of steps per measurement")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        net, what, budget = options.one
        print(json.dumps(measure_all(net, options.methods, options.device, what, float(budget))))
        return 0
    found = {net: costs(net, options.methods, options.device, options.budget) for net in options.only or NETS}
    kept = all(holds(methods) for methods in found.values())
    if options.out:
        record = {
            "nets": found,
            "call_us": hook(),
            "seed": SEED,
            "limits": [TIME_LIMIT, MEMORY_LIMIT],
            "held": kept,
        }
        options.out.write_text(json.dumps({**record, "made_with": made_with()}, indent=1))
    return 0 if kept else 1


def costs(net: str, methods: Sequence[str], device: str, budget: float) -> dict[str, Any]:
    """Time and memory of every method, printed as they are measured."""
    small = [method for method in methods if method != "full matrix" or fits(net, device)]
    if device == "cuda":  # it counts its own memory, so one process will do
        print(f"  {net}", file=sys.stderr, flush=True)
        found = elsewhere(net, small, device, "both", budget)
    else:
        found = {}
        for method in small:
            print(f"  {net}: {method}", file=sys.stderr, flush=True)
            parts = [elsewhere(net, [method], device, what, budget)[method] for what in ("time", "memory")]
            found[method] = parts[0] | parts[1]
    for method in set(methods) - set(small):
        found[method] = {"error": "n·d numbers do not fit this machine's memory"}
    print_costs(net, found)
    return found


def hook() -> dict[str, float]:
    """What the import adds to every call of a layer, in µs, by the call of the smallest Linear."""
    layer, x = nn.Linear(1, 1), torch.zeros(1, 1)

    def call() -> float:
        return min(timeit.repeat(lambda: layer(x), number=200, repeat=20)) / 200 * 1e6

    recording, without_gradients = call(), torch.no_grad()(call)()
    randeigen.torch.uninstall()
    bare, bare_without_gradients = call(), torch.no_grad()(call)()
    randeigen.torch.install()
    adds_without = without_gradients - bare_without_gradients
    return {"bare": bare, "adds": recording - bare, "adds_without_gradients": adds_without}


def print_costs(net: str, methods: dict[str, Any]) -> None:
    plain = methods.get("plain", {})
    for method, values in methods.items():
        if "error" in values:
            print(f"{net:>8} {method:>12}: {values['error']}")
            continue
        print(
            f"{net:>8} {method:>12}: {1e3 * values['seconds']:9.1f} ms "
            f"(best {1e3 * values['best_seconds']:.1f}), {values['mb']:8.1f} MB: "
            f"{values['plain_steps']:5.2f} plain steps "
            f"({values['plain_steps_of_cpu_time']:.2f} of their CPU time), "
            f"{values['mb'] / plain['mb']:5.2f} times their memory",
            flush=True,
        )


def holds(methods: dict[str, Any]) -> bool:
    plain, robust = methods["plain"], methods["robust"]
    return bool(robust["plain_steps"] <= TIME_LIMIT and robust["mb"] <= MEMORY_LIMIT * plain["mb"])


if __name__ == "__main__":
    sys.exit(main())
