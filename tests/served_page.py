"""The page as a user starts it, in a process of its own."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

START = "from vitrail.apps.cli import main; main()"


def _await(address):
    """Wait until the page answers: its address is told a moment before."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    for _ in range(3000):
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing answers at {address}")


def server_process(address):
    """The number of the process that listens at this address."""
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inode = next(row.split()[9] for row in table if row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A")
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{number}/fd/{fd}") for fd in os.listdir(f"/proc/{number}/fd")]
        except OSError:
            continue
        if f"socket:[{inode}]" in links:
            return int(number)
    raise AssertionError("the server's process was not found")


def memory(pid, kind="VmRSS"):
    """Bytes of memory a process holds; at its peak with `VmHWM`."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


@contextmanager
def served(*args):
    """The address of a page that is being served, and the lines it writes to its terminal."""
    environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", START, "app", *args], stderr=subprocess.PIPE, text=True, env=environment
    )
    guard = threading.Timer(300, process.kill)
    guard.start()
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://\S+(?=;)", line):
                break
        else:
            raise AssertionError(f"the page did not start: {''.join(lines)}")
        _await(found[0])
        guard.cancel()
        drain = threading.Thread(target=lambda: [lines.append(line) for line in process.stderr], daemon=True)
        drain.start()
        yield found[0], lines
    finally:
        guard.cancel()
        process.terminate()
        process.wait(300)
