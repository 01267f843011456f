"""Run every case of `abuse_cases` in a process forked from this one, which has everything imported and loaded.

Usage: python abuse_server.py FOLDER OUTPUT. The folder is filled with files; the output is a JSON object that says of
each case: exit code, stdout, stderr, the exception of a piece of Python, megabytes above those of this process, and
which files changed.
"""

import gc
import hashlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import abuse_cases
import torch

from vitrail.apps.cli import app, main, session, show  # noqa: F401
from vitrail.evaluate import bench
from vitrail.models import zoo
from vitrail.plots import report

SECONDS = 20


def tree(folder):
    """Every file with what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def run(name, act, folder, reports):
    """One case in a process of its own."""
    out, err, said = (reports / f"{kind}" for kind in ("out", "err", "said"))
    for path in (out, err, said):
        path.write_bytes(b"")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY), number)
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"))
        code = 70
        try:
            code = act(said)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    status, used = wait(child)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "stdout": out.read_text(errors="replace")[-2000:],
        "stderr": err.read_text(errors="replace")[-4000:],
        "said": said.read_text(),
        "megabytes": max(0, used.ru_maxrss - before) // 1024,
    }


def wait(child):
    """The status and the resources of a child, which is ended after a while."""
    stop = time.monotonic() + SECONDS
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            return status, used
        if time.monotonic() > stop:
            os.kill(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
            return status, used
        time.sleep(0.002)


def command(args):
    def act(said):
        sys.argv = ["vitrail", *args]
        main()

    return act


def python(code, known):
    def act(said):
        import vitrail

        try:
            exec(code, dict(known))
        except vitrail.VitrailError as error:
            said.write_text(f"VitrailError: {error}")
        except BaseException as error:
            said.write_text(f"raw: {type(error).__name__}: {error}")
        else:
            said.write_text("nothing was raised")
        return 0

    return act


def serve(folder, output):
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    reports = output.parent / "reports"
    reports.mkdir()
    abuse_cases.make_place(folder)
    os.chdir(folder)
    zoo.load = cache(zoo.load)
    known: dict = {}
    exec(abuse_cases.SETUP, known)
    import vitrail

    vitrail.explain(known["photo"], known["x"]).plot()  # warm: everything that is imported late
    session.load("photo")
    bench.read_plan, report.of_results  # noqa: B018  (warm: what the bench and reports import)
    cases = {f"cli: {name}": command(args) for name, args in abuse_cases.cli().items()}
    cases |= {f"python: {name}": python(code, known) for name, code in abuse_cases.PYTHON.items()}
    wanted = os.environ.get("ABUSE", "")
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    found, before = {}, tree(folder)
    for name, act in cases.items():
        if wanted in name:
            began = time.monotonic()
            found[name] = run(name, act, folder, reports)
            found[name]["seconds"] = time.monotonic() - began
            after = tree(folder)
            found[name]["changed"] = sorted(
                path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
            )
            before = after
            output.write_text(json.dumps(found))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
