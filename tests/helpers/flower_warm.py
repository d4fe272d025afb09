"""ClientApps in no time: forked from a process that has imported Flower, which takes longest of all.

    python flower_warm.py SOCKET        waits for `flwr-clientapp` as written by `write_command`

Each ClientApp is a process of its own all the same, and talks to its SuperNode over HTTP.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

COMMAND = """#!{python} -IS
import json, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
socket.send_fds(link, [json.dumps(sys.argv).encode()], [1, 2])
sys.exit(int(link.recv(8) or b"1"))
"""


def write_command(folder: Path, path: Path) -> None:
    """A `flwr-clientapp` that asks the waiting process for a ClientApp, and ends as it does."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "flwr-clientapp"
    command.write_text(COMMAND.format(python=sys.executable, path=str(path)))
    command.chmod(0o755)


def serve(path: str) -> None:
    import faulthandler  # noqa: F401 - whatever a ClientApp imports besides
    import gzip  # noqa: F401

    import numpy  # noqa: F401
    from flwr import app, clientapp  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        link, _ = server.accept()
        if os.fork():
            link.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words, files, _, _ = socket.recv_fds(link, 2**16, 2)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        code = 1
        try:
            sys.argv = json.loads(words)
            flwr_clientapp()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            link.sendall(str(code).encode())
            os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
