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
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import abuse_cases
import torch

from vitrail.apps.cli import main, session
from vitrail.models import zoo

SECONDS, PATIENCE = 20, 150
"""Processor time of a case, and how long it is waited for on a busy machine."""


LANES = 2
"""Cases run side by side, each lane in a folder of its own."""


def tree(folder, known={}):  # noqa: B006  (kept on purpose: a file whose time and size stayed is not read again)
    """Every file with what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            found[str(path.relative_to(folder))] = "no file"
            continue
        state = path.stat()
        key = (str(path), state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in known:
            known[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = known[key]
    return found


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
    stop = time.monotonic() + PATIENCE
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


def warm(folder):
    """Import and load everything, and give what pieces of Python start from."""
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(folder)
    zoo.load = cache(zoo.load)
    known: dict = {}
    exec(abuse_cases.SETUP, known)
    import vitrail

    vitrail.explain(known["photo"], known["x"]).plot()  # everything that is imported late
    session.load("photo")
    for module in walk_packages(vitrail.__path__, "vitrail."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("timm", "torchvision", "transformers.models.auto.modeling_auto"):
        import_module(name)
    return known


def serve(folder, output):
    """Run all cases in several lanes, and write what each of them found."""
    known = warm(folder)
    cases = {f"cli: {name}": command(args) for name, args in abuse_cases.cli().items()}
    cases |= {f"python: {name}": python(code, known) for name, code in abuse_cases.PYTHON.items()}
    wanted = [name for name in cases if os.environ.get("ABUSE", "") in name]
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    children = []
    for number in range(LANES):
        child = os.fork()
        if child == 0:
            mine = {name: cases[name] for name in wanted[number::LANES]}
            try:
                lane(mine, folder / str(number), output.with_name(f"lane{number}.json"))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * LANES
    found = [json.loads(output.with_name(f"lane{number}.json").read_text()) for number in range(LANES)]
    output.write_text(json.dumps({name: answer for lane in found for name, answer in lane.items()}))


def lane(cases, folder, output):
    """Run cases one after the other in a folder."""
    reports = output.with_name(f"{output.stem}_reports")
    reports.mkdir()
    folder.mkdir()
    abuse_cases.make_place(folder)
    os.chdir(folder)
    found, before = {}, tree(folder)
    for name, act in cases.items():
        began = time.monotonic()
        found[name] = run(name, act, folder, reports)
        found[name]["seconds"] = time.monotonic() - began
        after = tree(folder)
        changed = (path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        found[name]["changed"] = sorted(changed)
        before = after
        output.write_text(json.dumps(found))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
