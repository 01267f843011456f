"""A command that is broken off, or whose reader leaves, ends in at most one line and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitrail

SOURCE = str(Path(vitrail.__file__).parents[1])
COMMAND = [sys.executable, "-c", "from vitrail.apps.cli import main; main()"]
ENV = {**os.environ, "PYTHONPATH": SOURCE}


def start(*args, **more):
    return subprocess.Popen(
        [*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True, **more
    )


@pytest.mark.parametrize("args", [("methods",), ("methods", "gradtoken"), ("--help",), ("bench", "run", "--help")])
def test_a_closed_pipe_ends_quietly(args):
    process = start(*args)
    process.stdout.close()
    assert process.wait(300) in (0, 1)
    assert process.stderr.read() == ""


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, "methods"], stdout=full, stderr=subprocess.PIPE, text=True, env=ENV, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "error: stdout cannot be written: No space left on device.\n"


@pytest.mark.parametrize(
    "changed",
    [{"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, {"COLUMNS": "0"}, {"COLUMNS": "x", "TERM": "dumb"}],
    ids=str,
)
def test_odd_surroundings_change_the_look_alone(changed):
    env = {**ENV, **changed}
    env.pop("HOME", None)
    for args, word in ((("--help",), b"First steps"), (("methods", "consensus"), b"consensus")):
        result = subprocess.run([*COMMAND, *args], capture_output=True, env=env, check=False)
        assert (result.returncode, result.stderr) == (0, b"")
        assert word in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("later", [0.0, 0.5, 2.0])
def test_ctrl_c_is_one_line(later, tmp_path):
    process = start("explain", str(vitrail.zoo.example()), "-m", "photo", "-o", "map.png", cwd=tmp_path)
    libraries = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "libtorch" not in libraries.read_text():
        time.sleep(0.05)
    time.sleep(later)
    process.send_signal(signal.SIGINT)
    code, said = process.wait(300), process.stderr.read()
    assert (code, said) in ((130, "stopped\n"), (0, "wrote map.png\n"))
    assert [path.name for path in tmp_path.iterdir()] == (["map.png"] if code == 0 else [])


def test_ctrl_c_while_a_model_runs_is_one_line(run, monkeypatch, place):
    monkeypatch.setattr("vitrail.apps.cli.session.compare", interrupted)
    before = sorted(place.iterdir())
    result = run("explain", "cat.png", "-m", "vit", "-o", "map.png")
    assert (result.exit_code, result.stderr) == (130, "stopped\n")
    assert sorted(place.iterdir()) == before


def test_ctrl_c_in_the_bench_says_that_the_same_command_goes_on(run, monkeypatch, tmp_path):
    monkeypatch.setattr("vitrail.evaluate.bench.run", interrupted)
    result = run("bench", "run", "--quick", "-o", tmp_path / "r.db")
    assert result.exit_code == 130
    assert result.stderr == "stopped. What was computed is kept; the same command goes on from there\n"


def interrupted(*args, **more):
    raise KeyboardInterrupt
