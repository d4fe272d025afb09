"""A federation of real processes on this machine: a SuperLink, SuperNodes, and `flwr run`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from flower_warm import write_command

BIN = Path(sys.executable).parent
APP = Path(__file__).parents[1] / "flower" / "app"
WARM = Path(__file__).with_name("flower_warm.py")
SOURCE = Path(__file__).parents[2] / "src"
UP_SECONDS, DOWN_SECONDS = 90.0, 20.0


class Federation:
    """Use as a context: everything it starts is ended by its process group."""

    def __init__(self, folder: Path, nodes: int = 5, app: Path = APP, warm: bool = False) -> None:
        self.folder, self.count, self.warm = folder, nodes, warm
        self.home = folder / "flwr"
        self.app = folder / app.name
        shutil.copytree(app, self.app, ignore=shutil.ignore_patterns("__pycache__"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self._count = 0

    def __enter__(self) -> Federation:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\n'
            "insecure = true\n"
        )
        try:
            if self.warm:
                write_command(self.folder / "bin", self.folder / "warm")
                self.start("warm", sys.executable, str(WARM), str(self.folder / "warm"))
                self.wait_until((self.folder / "warm").exists, "no process is ready to become a ClientApp")
            self.start_link()
            for node in range(self.count):
                self.start_node(node)
            self.wait_for(self.count)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.stop(name)

    def start_link(self) -> None:
        words = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        self.start("link", "flower-superlink", *words, "--disable-runtime-dependency-installation")
        self.wait_until(lambda: can_connect(self.port), "the SuperLink does not listen")

    def start_node(self, part: int) -> None:
        config = f"partition-id={part} num-partitions={self.count}"
        words = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--node-config", config]
        self.start(
            f"node{part}", "flower-supernode", *words, "--host", "127.0.0.1", "--port", str(free_port())
        )

    def wait_for(self, nodes: int) -> None:
        """Until so many nodes in all have registered."""
        self.wait_until(lambda: self.log("link").count("ActivateNode") >= nodes, "nodes do not register")

    def start(self, name: str, program: str, *words: str) -> None:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - the process has it
        self.processes[name] = subprocess.Popen(
            [str(BIN / program), *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self.environment(),
            start_new_session=True,
        )
        log.close()

    def stop(self, name: str, how: int = signal.SIGINT) -> None:
        """End a process and all that it started."""
        process = self.processes.pop(name)
        for sign in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                break
            try:
                process.wait(DOWN_SECONDS if sign != signal.SIGKILL else 5)
            except subprocess.TimeoutExpired:
                continue
            if how == signal.SIGKILL:
                break

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(self.folder / "bin"), str(BIN), os.environ["PATH"]]),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "FAULTY_SMALL": "1",
            "PYTHONPATH": str(SOURCE),
        }

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_until(self, true, why: str, seconds: float = UP_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{why} after {seconds:.0f} s:\n{self.log('link')[-2000:]}")
            time.sleep(0.2)

    def submit(self, **config: object) -> str:
        """Start a run and return its number; its result will be in the file `out`."""
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(self.app), "loop", "--run-config", words, "--format", "json"],
            capture_output=True,
            text=True,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        match = re.search(r'"run-?_?id":\s*"?(\d+)', done.stdout)
        if not match:
            raise RuntimeError(f"flwr run: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return match[1]

    def status(self, run: str) -> str:
        """`finished:completed`, `finished:failed`, `running` and so on."""
        done = subprocess.run(
            [str(BIN / "flwr"), "list", "loop", "--run-id", run, "--format", "json"],
            capture_output=True,
            text=True,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        match = re.search(r'"status":\s*"([^"]+)"', done.stdout)
        return match[1] if match else done.stdout + done.stderr

    def run(self, seconds: float = 120.0, **config: object) -> dict:
        """A whole run: its status, how long it took, and the result that the app wrote."""
        self._count += 1
        out = self.folder / f"out-{self._count}.json"
        began = time.monotonic()
        number = self.submit(out=str(out), **config)
        while not self.is_over(number) and time.monotonic() - began < seconds:
            time.sleep(0.3)
        taken = round(time.monotonic() - began, 1)
        status = self.status(number)
        if not status.startswith("finished"):
            status = "stalled"
            self.cancel(number)
        result = json.loads(out.read_text()) if out.exists() else {}
        return {"status": status, "seconds": taken, **result}

    def is_over(self, run: str) -> bool:
        """Whether a run has ended: to ask `flwr list` costs more than a round, each call is a new process."""
        return re.search(rf"Finished task \d+ of run {run}\b", self.log("link")) is not None

    def killed_in_mid_round(self, folder: Path) -> dict:
        """Four rounds: a SuperNode is killed in the second and comes back, the ServerApp in the third.

        What became of the first run, and the whole of the one that goes on after it.
        """
        record, out = folder / "run.jsonl", folder / "out.json"
        config = {
            "rounds": 4,
            "record": str(record),
            "checkpoint": str(folder / "model.zip"),
            "patience": 5.0,
        }
        run = self.submit(out=str(out), **config)
        self.wait_until(lambda: lines(record) >= 1, "the first round does not end")
        self.stop("node0", signal.SIGKILL)
        self.wait_until(lambda: lines(record) >= 2, "the second round does not end")
        self.start_node(0)
        time.sleep(1.0)  # until the second round is in the checkpoint too
        os.kill(int(Path(f"{out}.pid").read_text()), signal.SIGKILL)
        self.wait_until(lambda: self.status(run).startswith("finished"), "the run does not end")
        return {"killed": self.status(run), **self.run(seconds=240, **config)}

    def cancel(self, run: str) -> None:
        subprocess.run(
            [str(BIN / "flwr"), "stop", run, "loop"],
            capture_output=True,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            timeout=60,
        )


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
