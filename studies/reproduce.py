"""One sitting of the paper's experiments on a GPU: cells in order of importance, until the time is over.

    nvidia-cuda-mps-control -d          # first, where several processes share the GPU: a fifth less time
    python -m studies.reproduce --device cuda --minutes 7 --workers 14 --done results/paper --out sitting.json
    echo quit | nvidia-cuda-mps-control
    python -m studies.reproduce --unpack sitting.json --into results/paper
    python -m studies.reproduce --redraw                # the tables of docs/reproduction.md, from results/

Needs torch and numpy alone. Every finished cell is in the file at once. A cell begins only if it will have
ended when the time is over, by what its kind was found to cost (`studies.sitting`); one that takes longer
than that is kept with the rounds it had. `--unpack` puts one record for each cell and seed where `randeigen
reproduce` looks for it, leaves what is there, and takes no record where a longer one is. Records name the
commit in RANDEIGEN_COMMIT where the code was copied without its history.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

from randeigen.lab.paper.cells import IMAGES, NONE_DBA, chosen, trained_as
from randeigen.lab.paper.planes import planes
from randeigen.lab.paper.record_text import short, write_record
from randeigen.lab.paper.report import markdown_parts
from randeigen.lab.paper.training import Job, run_job
from randeigen.rows.write import replacing
from studies.documents import redraw
from studies.sitting import Costs, Running, next_job

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "reproduction.md", ROOT / "results"


def plan(passes: Sequence[str]) -> list[Job]:
    """The cells of these passes in order; a job that an earlier pass has is left out.

    Within a pass the longest come first, so that no cell begins when the others are nearly done.
    """
    cost = Costs().of
    return list(
        dict.fromkeys(job for name in passes for job in sorted(PASSES[name](), key=cost, reverse=True))
    )


def _images(attacks: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        for rule in rules:
            for attack in attacks:
                for data in IMAGES:
                    for cell in chosen("table:images", [f"{data}/{attack}/{rule}"]):
                        yield Job(cell, seed)


def _dfba(seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        for rule in ("randeigen", "none", "published"):
            for cell in chosen("table:dfba", [f"mnist/*/{rule}"]):
                yield Job(cell, seed)


def _by_eps(seeds: Sequence[int]) -> Iterator[Job]:
    """Figure 3 at the fractions that the table does not have."""
    for seed in seeds:
        for cell in chosen("figure:3"):
            if trained_as(cell) == cell:
                yield Job(cell, seed)


def _matching(seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        yield from (Job(cell, seed) for cell in chosen("table:centralized", ["mnist/gradient-matching/*"]))


ATTACKED = ("hidra", "tma", "mra", "mpa")  # on the paper's CNN; DBA has its own
QUICK = ("none", *ATTACKED)
BASELINES = ("published", "no-regret", "filtering-adaptive", "filtering")
PASSES: dict[str, Callable[[], Iterable[Job]]] = {
    "default": lambda: _images(QUICK, ["randeigen"], [0, 1, 2]),
    "clean": lambda: _images(("none",), ["none"], [0, 1, 2]),
    "matching": lambda: _matching([0, 1, 2]),  # a cell of this is not cut
    "dba-clean": lambda: _images((NONE_DBA,), ["none"], [0, 1, 2]),
    "dba": lambda: _images(("dba",), ["none", "randeigen"], [0, 1, 2]),
    "dba-baselines": lambda: _images(("dba",), BASELINES, [0]),
    "published": lambda: _images(QUICK, ["published"], [0]),
    "filtering-adaptive": lambda: _images(QUICK, ["filtering-adaptive"], [0]),
    "dfba": lambda: _dfba([0]),
    "undefended": lambda: _images(ATTACKED, ["none"], [0]),
    "filtering": lambda: _images(QUICK, ["filtering"], [0]),
    "no-regret": lambda: _images(QUICK, ["no-regret"], [0]),
    "figure-3": lambda: _by_eps([0]),
    # Other seeds of the same.
    "undefended-seeds": lambda: _images(ATTACKED, ["none"], [1, 2]),
    "baselines-seeds": lambda: _images(QUICK, BASELINES, [1, 2]),
    "dfba-seeds": lambda: _dfba([1, 2]),
    "dba-seeds": lambda: _images(("dba",), BASELINES, [1, 2]),
}


def main(words: Sequence[str] | None = None) -> int:
    """Train, or unpack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin no cell that takes longer")
    parser.add_argument("--workers", type=int, default=14, help="cells trained beside each other")
    parser.add_argument("--passes", nargs="+", choices=list(PASSES), default=list(PASSES), metavar="PASS")
    parser.add_argument("--done", type=Path, help="a folder of records: cells that it has are left out")
    parser.add_argument("--rounds", type=int, help="no cell has more rounds: for trials")
    parser.add_argument("--list", action="store_true", help="print the cells in order and end")
    parser.add_argument("--out", type=Path, default=Path("sitting.json"))
    parser.add_argument("--planes", action="store_true", help="first the updates behind Figures 1 and 5c")
    parser.add_argument("--redraw", action="store_true", help="put the tables of results/ into the docs")
    parser.add_argument("--unpack", type=Path)
    parser.add_argument("--into", type=Path, default=Path("results/paper"))
    options = parser.parse_args(words)
    if options.redraw:
        redraw(PAGE, markdown_parts(RESULTS))
        return 0
    if options.unpack:
        return unpack(options.unpack, options.into)
    jobs = plan(options.passes)
    if options.rounds is not None:
        jobs = list(dict.fromkeys(Job(job.cell, job.seed, options.rounds) for job in jobs))
    if options.done:
        jobs = [job for job in jobs if not job.path(options.done).exists()]
    if options.list:
        for job in jobs:
            print(job.command)
        return 0
    return sit(jobs, options)


def sit(jobs: Sequence[Job], options: argparse.Namespace) -> int:
    """Run the jobs in order, several at a time, each if it will end in time."""
    until = time.time() + 60 * options.minutes
    kept: list[dict[str, Any]] = []
    if options.planes:
        kept.append({"folder": "figure-1", "file": "planes", "record": planes(device=options.device)})
        save(kept, options.out)
        print(f"planes: {kept[0]['record']['made']['seconds']:.0f} s", flush=True)
    context, waiting, costs = get_context("spawn"), list(jobs), Costs()
    reports, running = context.Queue(), dict[Future[Any], Running]()
    with ProcessPoolExecutor(options.workers, context, _one_thread, (reports,)) as pool:
        while True:
            _listen(reports, running, costs)
            while len(running) < options.workers:
                others = [each.left(costs) for each in running.values()]
                job = next_job(waiting, costs, others, until - time.time())
                if job is None:
                    break
                waiting.remove(job)
                running[pool.submit(_work, job, options.device, until)] = Running(job)
            if not running:
                break
            try:
                for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    _keep(running.pop(future).job, future.result(), kept, options.out)
            except BrokenExecutor as error:  # a process was killed; what is done is in the file
                print(f"the sitting ends: {error}", flush=True)
                break
    print(f"{len(kept)} of {len(jobs)} cells in {options.out}; for {len(waiting)} there was no time")
    return 0 if kept else 1


def _listen(reports: Any, running: dict[Future[Any], Running], costs: Costs) -> None:
    """Take in what the processes said of their rounds."""
    by_job = {each.job: each for each in running.values()}
    while True:
        try:
            job, done, now = reports.get_nowait()
        except Empty:
            return
        if job in by_job:
            by_job[job].report(done, now, costs, len(running))


def _keep(job: Job, outcome: Any, kept: list[dict[str, Any]], out: Path) -> None:
    if isinstance(outcome, str):
        print(f"{job.cell.name} seed {job.seed}: {outcome}", flush=True)
        return
    kept.append({"folder": job.folder, "file": _file(job, outcome), "record": outcome})
    save(kept, out)
    rounds, last = len(outcome["history"]), outcome["history"][-1]
    print(
        f"{job.cell.name} seed {job.seed}: {rounds} rounds, accuracy {last['accuracy']:.3f}, asr "
        f"{last['asr']}, {outcome['made']['seconds']:.0f} s",
        flush=True,
    )


def save(kept: list[dict[str, Any]], path: Path) -> None:
    """All records so far, in one file."""
    with replacing(path) as file:
        file.write(json.dumps({"records": kept}, allow_nan=False).encode())


def _file(job: Job, record: dict[str, Any]) -> str:
    """The name of the record, by the rounds that it has."""
    return Job(job.cell, job.seed, len(record["history"])).file


_REPORTS: list[Any] = []  # in a process of the pool: the queue to which its rounds are reported


def _one_thread(reports: Any) -> None:
    import torch

    torch.set_num_threads(1)
    _REPORTS[:] = [reports]


def _work(job: Job, device: str, until: float) -> Any:
    """A record as JSON has it, or why there is none."""
    done = iter(range(sys.maxsize))

    def report(_: str) -> None:
        _REPORTS[0].put((job, next(done), time.time()))

    try:
        record = run_job(job, device=device, until=until, progress=report)
    except Exception as error:  # one cell that fails must not end the sitting
        return f"{type(error).__name__}: {error}"
    return "too few rounds to keep" if record is None else short(json.loads(record.as_json()))


def unpack(path: Path, into: Path) -> int:
    """One file for each record of a sitting."""
    content = json.loads(path.read_text())
    written = 0
    for one in content["records"]:
        target = into / one["folder"] / f"{one['file']}.json"
        if target.exists() or _has_longer(target):
            print(f"{target} is there already, or a longer one; it stays")
            continue
        write_record(target, one["record"])
        written += 1
    print(f"{written} of {len(content['records'])} records written to {into}")
    return 0


def _has_longer(target: Path) -> bool:
    """Whether there is a record of the same cell and seed with more rounds."""
    here = re.fullmatch(r"(.+-rounds)(\d+)(-seed\d+\.json)", target.name)
    if here is None or not target.parent.is_dir():
        return False
    same = re.compile(re.escape(here[1]) + r"(\d+)" + re.escape(here[3]))
    others = (same.fullmatch(path.name) for path in target.parent.iterdir())
    return any(int(other[1]) > int(here[2]) for other in others if other)


if __name__ == "__main__":
    sys.exit(main())
