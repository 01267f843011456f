"""Run the cases of `abuse_cases` in processes forked from this one, which has everything imported and loaded.

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
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import abuse_cases
import torch
import typer

from vitrail.apps.cli import main, session
from vitrail.models import zoo

SECONDS, PATIENCE = 20, 300
"""Processor time of a case, and how long it is waited for on a busy machine."""


LANES = 2
"""Cases run side by side, each lane in a folder of its own."""
TOGETHER = 25
"""Cases in one process: a fork of a process with all libraries takes longer than most cases."""


def tree(folder, known={}):  # noqa: B006  (kept on purpose: a file whose time and size stayed is not read again)
    """Every file with what is in it."""
    found = {}
    for place, folders, files in os.walk(folder):
        found |= {os.path.join(place, name): "no file" for name in folders}
        for name in files:
            path = os.path.join(place, name)
            state = os.lstat(path)
            key = (path, state.st_ino, state.st_size, state.st_mtime_ns)
            if key not in known:
                known[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest() if os.path.isfile(path) else "no file"
            found[path] = known[key]
    return found


def answer(act, reports):
    """What one case answers, in this process. Warnings are shown again in each case."""
    out, err, said = (reports / kind for kind in ("out", "err", "said"))
    said.write_bytes(b"")
    for path, number in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"))
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    with warnings.catch_warnings():
        code = exit_code(act, said)
    sys.stdout.flush()
    sys.stderr.flush()
    return {
        "code": code,
        "stdout": out.read_text(errors="replace")[-2000:],
        "stderr": err.read_text(errors="replace")[-4000:],
        "said": said.read_text(),
    }


def exit_code(act, said):
    try:
        return act(said) or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70


def wait(child, seconds):
    """The status of a child, which is ended after a while."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


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
    zoo.load, zoo.load_plain, typer.main.get_command = map(cache, (zoo.load, zoo.load_plain, typer.main.get_command))
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
    """Run cases in a folder, several in each process. One that ends its process is the last of it, and is told."""
    reports = output.with_name(f"{output.stem}_reports")
    reports.mkdir()
    folder.mkdir()
    abuse_cases.make_place(folder)
    os.chdir(folder)
    waiting = list(cases)
    found = {}
    while waiting:
        part = waiting[:TOGETHER]
        (reports / "answers").write_bytes(b"")
        child = os.fork()
        if child == 0:
            several({name: cases[name] for name in part}, folder, reports)
            os._exit(0)
        status = wait(child, PATIENCE * len(part))
        done = [json.loads(line) for line in (reports / "answers").read_text().splitlines()]
        found |= dict(zip(part, done, strict=False))
        if len(done) < len(part):
            ended = {"code": os.waitstatus_to_exitcode(status), "stderr": (reports / "err").read_text(errors="replace")}
            found[part[len(done)]] = {"stdout": "", "said": "the process ended", "changed": [], "megabytes": 0, **ended}
        waiting = waiting[len(done) + (len(done) < len(part)) :]
    output.write_text(json.dumps(found))


def several(cases, folder, reports):
    """Run cases one after the other; a line for each. Its megabytes are the most that were held so far."""
    start, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, tree(folder)
    with (reports / "answers").open("w", buffering=1) as answers:
        for act in cases.values():
            found = answer(act, reports)
            os.chdir(folder)
            after = tree(folder)
            found["changed"] = sorted(
                path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
            )
            found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024
            answers.write(json.dumps(found) + "\n")
            before = after


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
