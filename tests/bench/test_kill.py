"""A run that is killed at any moment goes on as if nothing had happened."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import torch

from vitrail.evaluate import bench

SCRIPT = """
import sys, time, torch
from vitrail.evaluate import bench
torch.set_num_threads(int(sys.argv[4]))
def slow(units, worker):
    for number, unit in enumerate(units):
        if number == 4:
            time.sleep(600)  # until it is killed
        yield worker(unit)
plan = bench.Plan(
    models=(bench.ModelSpec(sys.argv[1]),), data=(bench.DataSpec("pets", sys.argv[2]),),
    trials=(bench.Trial("gae"), bench.Trial("rollout")), protocols=bench.protocols_of(("chefer",)), batch=1,
)
bench.run(plan, sys.argv[3], engine=slow)
"""


def count(path):
    try:
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT COUNT(DISTINCT example) FROM results").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


def test_after_kill_nine_the_table_has_the_same_bytes_as_without(place, plan_of, tmp_path):
    whole, broken = tmp_path / "whole.db", tmp_path / "broken.db"
    arguments = [str(place / "vit"), str(place / "pets"), str(broken), str(torch.get_num_threads())]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], cwd=tmp_path)
    try:
        limit = time.monotonic() + 300
        while count(broken) < 2 and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = count(broken)
    assert 2 <= left < 6
    resumed = bench.run(plan_of(batch=1), broken)
    assert resumed.fresh == 6 - left
    bench.run(plan_of(batch=1), whole)
    for form in ("markdown", "latex", "csv"):
        texts = [bench.render(bench.tables(path), form).encode() for path in (broken, whole)]
        assert texts[0] == texts[1]
