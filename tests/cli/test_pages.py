import subprocess
import sys

import pytest
from saved_models import save_bert
from typer.testing import CliRunner

from vitrail.apps.cli.app import app
from vitrail.apps.cli.pages import option_docs
from vitrail.methods import METHODS


def run(*args):
    return CliRunner().invoke(app, list(map(str, args)), env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def test_the_manual_names_every_command_and_shows_examples():
    text = run("--help").stdout
    assert all(word in text for word in ("explain", "compare", "methods", "doctor", "-o sheet.png"))


def test_no_line_of_the_examples_is_broken_in_a_small_terminal():
    for command in ([], ["explain"], ["compare"]):
        lines = run(*command, "--help").stdout.splitlines()
        assert not [line for line in lines if line.startswith(" other")]
        assert max(map(len, lines)) <= 80


def test_the_table_names_every_method_in_full():
    text = run("methods").stdout
    assert all(name in text for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_every_method_is_explained(name):
    method = METHODS[name]
    assert set(option_docs(method)) == set(method.options)
    result = run("methods", name)
    assert result.exit_code == 0
    assert all(option in result.stdout for option in method.options)


def test_the_page_of_a_method_shows_how_presets_differ():
    text = run("methods", "attcat").stdout
    assert "states=output" in text
    assert "states=input" in text


def test_an_unknown_method_is_one_line():
    result = run("methods", "gea")
    assert (result.exit_code, result.stderr) == (1, "error: unknown method 'gea'. Did you mean gae?\n")


def test_the_doctor_passes_a_sound_model(tmp_path):
    result = run("doctor", save_bert(tmp_path / "bert"))
    assert result.exit_code == 0
    assert "equal bit for bit" in result.stdout
    assert "bert.encoder.layer.1: self 7 x 7" in result.stdout
    assert "family\tmeasured BertForSequenceClassification" in result.stdout


def test_the_doctor_fails_with_exit_code_one(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.tools.doctor._error", lambda layer: 1.0)
    result = run("doctor", save_bert(tmp_path / "bert"))
    assert result.exit_code == 1
    assert "FAILED: layers 0, 1 do not match" in result.stdout


def test_without_typer_the_command_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from vitrail.apps.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.strip() == "error: the command line needs the package typer: pip install 'vitrail[cli]'"


@pytest.mark.parametrize(("name", "old"), [("generate", "answer"), ("structure", "doctor")])
def test_commands_have_the_names_of_the_functions(name, old):
    new, earlier = (CliRunner().invoke(app, [command, "--help"]) for command in (name, old))
    assert new.exit_code == earlier.exit_code == 0
    assert f"vitrail {name}" in earlier.output
