"""Every python example of the README and the docs runs, page by page, in order."""

import re
import shlex
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitrail.apps.cli.app import app
from vitrail.evaluate import metrics

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src/vitrail/models/zoo/cards").glob("*.md")),
]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.fixture(autouse=True)
def _few_random_maps(monkeypatch):
    """The curve of chance by one random map; tests/report draws it by all of them."""
    monkeypatch.setattr("vitrail.plots.report.explaining.RANDOM", 1)


@pytest.mark.parametrize("page", [p for p in PAGES if EXAMPLE.search(p.read_text())], ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder, as that of a reader who just installed the package
    namespace = {"__name__": "example"}
    for match in EXAMPLE.finditer(page.read_text()):
        line = page.read_text()[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), namespace)
    assert len(namespace) > 2


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_an_empty_folder_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [one.close() for one in sockets])
    monkeypatch.setattr("vitrail.apps.demo.ON_PICTURES", ("gae",))  # tests/test_demo.py runs it with all its methods
    monkeypatch.setattr("vitrail.apps.demo.ON_SENTENCES", ("consensus", "gae"))
    own = metrics.randomised  # tests/bench/test_sanity.py randomises every part
    monkeypatch.setattr(metrics, "randomised", lambda *args, **options: islice(own(*args, **options), 2))
    lines = [line for block in COMMANDS.findall((ROOT / "README.md").read_text()) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("vitrail ")]
    assert len(commands) >= 9
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
        assert "error" not in result.stderr
        if "-o" in command:
            assert Path(command[command.index("-o") + 1]).stat().st_size > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_links_of_a_page_lead_somewhere(page):
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


def test_every_method_is_described_with_every_option_on_a_page_or_in_its_own_file():
    from vitrail import METHODS

    table = (ROOT / "docs/methods/README.md").read_text()
    for name, entry in METHODS.items():
        link = re.search(rf"\[{name}\]\(([^)]+)\)", table)
        if link:
            page = (ROOT / "docs/methods" / link[1]).read_text()
            assert [option for option in entry.options if f"`{option}`" not in page] == [], name
        else:  # `vitrail methods NAME` prints the docstring of its file; tests/cli/test_pages.py holds its options
            assert len(entry.about.split()) > 20, name


def test_the_readme_is_short_and_names_every_method_target_and_extra():
    import tomllib

    from vitrail import METHODS

    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 140
    assert max(map(len, text.splitlines())) <= 100
    assert int(re.search(r"more than (\d+)\s+methods", text)[1]) < len(METHODS)
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    targets = "logit probability difference relative_difference ratio next_token continuation answer_span similarity"
    pages = (ROOT / "docs/methods/README.md").read_text()
    methods = {name for name in METHODS if f"[{name}](" in pages}
    named = {*methods, *targets.split(), *extras - {"dev"}}
    assert [name for name in named if not re.search(rf"\b{name}\b", text)] == []


PARTS = {
    "Equation": r"`[^`]*[=←][^`]*`|^```text",
    "Options": r"^\| option|no options",
    "When to use it": r"\w",
    "When not": r"\w",
    "Cost": r"pass",
    "Example": r"^```(console|python)",
}
"""What stands below each heading of a method's page."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs/methods").glob("[!R]*.md")), ids=lambda p: p.stem)
def test_the_page_of_a_method_has_all_seven_parts(page):
    text = page.read_text()
    assert re.search(r"^\*\*Purpose\.\*\* \w", text, re.MULTILINE)
    below = {
        part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    }
    assert [name for name in below if name in PARTS] == list(PARTS)
    assert [name for name, words in PARTS.items() if not re.search(words, below[name], re.MULTILINE)] == []


def test_every_metric_stands_in_its_page():
    from vitrail import metrics

    page = (ROOT / "docs/metrics.md").read_text()
    assert [name for name in metrics.__all__ if not re.search(rf"\b{name}\b", page)] == []
