"""docs/how-to/many-machines.md: its lines for each engine write the bytes of one process.

Engines that are not installed are skipped: `pip install ray 'dask[distributed]' pyspark` (and a Java) run
all. SLURM is played by two scripts of ten lines that start what they are given with its variables set.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from textwrap import dedent, indent

import numpy as np
import pytest

import randeigen
from randeigen.rows import write_safetensors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "many-machines.md").read_text()
SECONDS = 180
pytestmark = pytest.mark.slow
N, D = 6, 1_500_000  # five blocks of 8 MB over all files

ENGINES = {
    "Dask": (
        "from dask.distributed import LocalCluster",
        "cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)",
    ),
    "Ray": ("import ray", "ray.init(num_cpus=2, include_dashboard=False)"),
    "Spark": (
        "from pyspark.sql import SparkSession",
        "spark = SparkSession.builder.master('local[2]').getOrCreate()",
    ),
}
PACKAGES = {"Dask": "distributed", "Ray": "ray", "Spark": "pyspark"}
ENDS = {"Dask": "client.close(); cluster.close()", "Ray": "ray.shutdown()", "Spark": "spark.stop()"}

SLURM = """#!{python}
# Stands in for sbatch and srun: runs what it is given once for each task, one after the other.
import os, subprocess, sys
words = sys.argv[1:]
value = {{word: words[k + 1] for k, word in enumerate(words[:-1]) if word.startswith("--")}}
if "--ntasks" in value:
    command, tasks = words[2:], range(int(value["--ntasks"]))
    names = {{"SLURM_NTASKS": str(len(tasks))}}
else:
    command, names = ["bash", "-c", value["--wrap"]], {{}}
    first, _, last = value.get("--array", "0-0").partition("-")
    tasks = range(int(first), int(last) + 1)
for task in tasks:
    own = {{"SLURM_PROCID": str(task), "SLURM_ARRAY_TASK_ID": str(task)}}
    subprocess.run(command, check=True, stdout=sys.stderr, env={{**os.environ, **names, **own}})
if "--parsable" in words:
    print(7)
"""


def lines_of(title: str, number: int = 0) -> str:
    """A block of code in the section of this title."""
    section = PAGE.split(f"## With {title}\n")[1].split("\n## ")[0]
    fenced = re.findall(r"```\w+\n(.*?)```", section, re.S)
    indented = re.findall(r"(?:^    .*\n)+", section, re.M)
    blocks: list[str] = [*fenced, *map(dedent, indented)]
    return blocks[number]


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster") / "updates"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(N):
        row = rng.standard_normal(D, dtype=np.float32) + np.float32(i == 3)
        write_safetensors(folder / f"client-{i}.safetensors", {"head": row[:1000], "body": row[1000:]})
    return folder


def of_one_worker(updates: Path, folder: Path) -> bytes:
    """What one worker writes by the decision in this folder."""
    decision = randeigen.SharedDecision.read(folder / "decision.json")
    randeigen.spend(sorted(map(str, updates.iterdir())), decision, out=folder / "one.safetensors")
    return (folder / "one.safetensors").read_bytes()


def run(command: list[str], folder: Path, **variables: str) -> None:
    source = str(Path(randeigen.__file__).resolve().parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_lines_of_an_engine_are_run_word_for_word(engine: str, updates: Path, tmp_path: Path) -> None:
    if find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"{PACKAGES[engine]} is not installed")
    if engine == "Spark" and not (which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs a Java")
    imported, started = ENGINES[engine]
    code = lines_of(engine).replace('"scheduler:8786"', "cluster")  # the reader's own address
    code = code.replace(
        "mean.safetensors", f"{tmp_path}/mean.safetensors"
    )  # workers have folders of their own
    steps = [
        f"paths = {sorted(map(str, updates.iterdir()))!r}",
        started,
        code,
        "decision.write('decision.json')",
    ]
    script = f"import randeigen\n{imported}\nif __name__ == '__main__':\n"
    (tmp_path / "driver.py").write_text(script + indent("\n".join(steps), "    "))
    run([sys.executable, "driver.py"], tmp_path)
    assert (tmp_path / "mean.safetensors").read_bytes() == of_one_worker(updates, tmp_path)


def on_slurm(script: str, updates: Path, folder: Path) -> None:
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(SLURM.format(python=sys.executable))
    (programs / "randeigen").write_text(f'#!/bin/sh\nexec {sys.executable} -m randeigen "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    work = folder / "work"
    work.mkdir()
    (work / "updates").symlink_to(updates)
    run(["bash", "-ec", script], work, PATH=f"{programs}:{os.environ['PATH']}")
    assert (work / "mean.safetensors").read_bytes() == of_one_worker(updates, work)


@pytest.mark.parametrize("block", [0, 1], ids=["sbatch", "srun"])
def test_the_lines_for_slurm_are_run_word_for_word(block: int, updates: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    on_slurm(lines_of("SLURM", block), updates, tmp_path)
