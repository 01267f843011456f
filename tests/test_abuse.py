"""Every bad input is answered by one line, leaves files as they were, and takes little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from abuse_cases import PYTHON, cli
from made_once import made_once

import vitrail

HERE = Path(__file__).parent
MEGABYTES = 700
"""What a refusal may take beyond the process it is forked from."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every case answered: all are run once, without the checks of types that tests usually add."""

    def answers(folder):
        (folder / "place").mkdir()
        paths = os.pathsep.join([str(Path(vitrail.__file__).parents[1]), str(HERE)])
        subprocess.run(
            [sys.executable, HERE / "abuse_server.py", folder / "place", folder / "out.json"],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True,
        )  # fmt: skip
        return json.loads((folder / "out.json").read_text())

    return made_once(tmp_path_factory, "abuse", answers)


def test_there_are_enough_cases():
    assert len(cli()) + len(PYTHON) >= 300


@pytest.mark.parametrize("name", cli())
def test_a_bad_command_line_is_one_line(found, name):
    answer = found[f"cli: {name}"]
    lines = answer["stderr"].splitlines()
    assert answer["code"] in (1, 2), lines[-3:]
    assert len(lines) == 1, lines[-3:]
    assert lines[0].startswith("error: ")
    assert answer["changed"] == []
    assert answer["megabytes"] < MEGABYTES


@pytest.mark.parametrize("name", PYTHON)
def test_a_bad_call_is_an_error_of_ours(found, name):
    answer = found[f"python: {name}"]
    assert answer["said"].startswith("VitrailError: "), answer["said"]
    assert answer["changed"] == []
    assert answer["megabytes"] < MEGABYTES
