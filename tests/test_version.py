"""The version stands in one place, and everything that a result says of its maker comes from there."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import torch
from plain_vit import plain_vit
from typer.testing import CliRunner

import vitrail
from vitrail.apps.cli.app import app
from vitrail.attribution import Attribution, versions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
INSTALL = re.search(r"^## Install\n+```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1].splitlines()


def commands():
    return [shlex.split(line, comments=True) for line in INSTALL]


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    path = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.*)"$', path.read_text(), re.MULTILINE) == [vitrail.__version__]
    number = re.compile(rf'"{re.escape(vitrail.__version__)}"')
    sources = [*ROOT.glob("src/**/*.py"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    assert [file for file in sources if number.search(file.read_text())] == [path]


def test_the_version_is_that_of_the_newest_changes():
    newest, state = re.search(r"^## (\S+)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert vitrail.__version__.partition(".dev")[0] == newest
    assert (".dev" in vitrail.__version__) == ("unreleased" in state)


def test_results_name_the_version_of_the_code_whatever_was_installed(monkeypatch, tmp_path):
    monkeypatch.setattr("vitrail.attribution.version", lambda package: "0.0.1")  # an installation of older code
    versions.cache_clear()
    try:
        torch.manual_seed(0)
        model, images = plain_vit()
        made = vitrail.explain(model, images, "gae")
        made.save(tmp_path / "map.json")
        assert made.provenance["versions"]["vitrail"] == vitrail.__version__
        assert Attribution.load(tmp_path / "map.json").provenance["versions"]["vitrail"] == vitrail.__version__
        assert json.loads((tmp_path / "map.json").read_text())["provenance"]["versions"]["torch"] == "0.0.1"
        assert versions(("numpy",))["vitrail"] == vitrail.__version__  # what the bench stores with its rows
    finally:
        versions.cache_clear()


def test_the_command_line_says_the_same_version():
    assert CliRunner().invoke(app, ["--version"]).output == f"vitrail {vitrail.__version__}\n"


def test_the_readme_installs_from_the_clone_first():
    kind, verb, what = commands()[0]
    assert (kind, verb) == ("pip", "install")
    extra = re.fullmatch(r"\.\[(\w+)\]", what)[1]
    assert extra in PROJECT["project"]["optional-dependencies"]
    assert "Once" in next(line for line in README.splitlines() if "'vitrail[all]'" in line)


def test_the_readme_names_both_commands_and_the_gate_calls_the_one_that_tests():
    named = [" ".join(words) for words in commands() if words[0] == "make"]
    assert {"make demo", "make test"} <= set(named)
    targets = re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {target for line in targets for target in line.split()}
    assert {words.split()[1] for words in named} <= known
    gate = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith(("#", "set"))]
    assert gate[-1] in named
    assert gate[-1] == "make test"


def test_the_package_is_typed_and_can_be_cited():
    assert (ROOT / "src/vitrail/py.typed").is_file()
    cited = dict(re.findall(r"^(\S+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert cited["title"] == "Vitrail"
    assert cited["license"] == PROJECT["project"]["license"]
