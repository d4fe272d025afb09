"""Draw the logs of two runs of train.py: loss over steps, and the trust in each rank.

python examples/torchrun/picture.py plain.json guarded.json --out torchrun.png
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MAX_SHOWN = 4.0  # of the loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plain", type=Path)
    parser.add_argument("guarded", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    plain, guarded = (json.loads(path.read_text()) for path in (asked.plain, asked.guarded))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for run, name, colour in ((plain, "DDP", "#c44e52"), (guarded, "DDP with Guard", "#2f6db3")):
        losses = [math.nan if line["loss"] is None else line["loss"] for line in run["log"]]
        left.plot(losses, color=colour, label=f"{name}: {run['log'][-1]['accuracy']:.0%} at the end")
        lost = next((step for step, loss in enumerate(losses) if not loss < MAX_SHOWN), None)
        if lost is not None:
            text = f" {losses[lost]:.0e} in step {lost}"
            left.text(lost, 0.93 * MAX_SHOWN, text, color=colour, va="top")
    left.set(ylim=(0, MAX_SHOWN), xlabel="step", ylabel="test loss")
    left.set_title(f"rank {plain['faulty']} of {len(guarded['log'][0]['trust'])} flips bits")
    left.legend(frameon=False, loc="center right")
    for rank in range(len(guarded["log"][0]["trust"])):
        faulty = rank == guarded["faulty"]
        right.plot(
            [line["trust"][rank] for line in guarded["log"]],
            color="#c44e52" if faulty else "#9aa5b1",
            label=f"rank {rank}" + (", faulty" if faulty else ""),
        )
    right.set(xlabel="step", ylabel="trust (1 is a full part)", title="guard.trust", ylim=(0.5, 1.25))
    right.legend(frameon=False, ncols=2)
    figure.savefig(asked.out, dpi=120)


if __name__ == "__main__":
    main()
