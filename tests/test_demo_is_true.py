"""What the demo and the docs say an answer rests on has a measured effect on that answer."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vitrail import zoo
from vitrail.apps import demo
from vitrail.apps.cli.app import app
from vitrail.apps.demo import Made, explain_answer

ROOT = Path(__file__).parents[1]
SHARE, EFFECT = 0.05, 0.1
"""A passage with a larger share of an answer changes its log-probability by at least so much when it is removed."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "src/vitrail/apps/cli/explain.py"]
COMMAND = re.compile(r"^ *(vitrail (?:generate|answer) .*--model lookup.*(?:\n {6}.*)?)$", re.MULTILINE)
SHOWN = re.compile(r"^ *(\d+)%  (?:prompt: )?(.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def lookup():
    return zoo.load("lookup")


def log_probability(lookup, text, answer):
    """Of an answer of one word after a text."""
    tokenizer = lookup.preprocess.tokenizer
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        return float(lookup.model(**inputs).logits[0, -1].log_softmax(dim=0)[tokenizer(answer)["input_ids"][0]])


def check_shown(lookup, question, answer, output):
    """Compare the shares in an output with what the removal of each sentence does."""
    shares = {passage.strip(): int(percent) / 100 for percent, passage in SHOWN.findall(output)}
    assert max(shares.values()) > 0.3
    statements = re.findall(r"\w+: \w+\.", question)
    ends_with = question[question.rindex(statements[-1]) + len(statements[-1]) :].strip()
    whole = log_probability(lookup, question, answer)
    for passage, share in shares.items():
        kept = [one for one in [*statements, ends_with] if one != passage]
        assert len(kept) == len(statements)  # it is one of the passages
        effect = whole - log_probability(lookup, " ".join(kept), answer)
        if share > SHARE:
            assert effect > EFFECT, (passage, share, effect)
    truly = max(statements, key=lambda one: -log_probability(lookup, question.replace(one, ""), answer))
    assert shares[truly] > 0.3


def test_every_sentence_that_the_demo_credits_changes_the_answer(lookup, monkeypatch):
    made = explain_answer(lookup.model, lookup.preprocess.tokenizer)
    monkeypatch.setattr(demo, "run", lambda folder: Made([], [], made, ()))
    output = CliRunner().invoke(app, ["demo"]).output
    check_shown(lookup, demo.QUESTION, made.text, output)


def test_it_holds_for_any_question_of_the_demo(lookup, monkeypatch):
    things = "Boris: ring. David: lamp. Anna: map. Clara: key."
    for name in ("Boris", "David", "Anna", "Clara"):
        monkeypatch.setattr(demo, "QUESTION", f"{things} {name}:")
        made = explain_answer(lookup.model, lookup.preprocess.tokenizer)
        monkeypatch.setattr(demo, "run", lambda folder, made=made: Made([], [], made, ()))
        check_shown(lookup, demo.QUESTION, made.text, CliRunner().invoke(app, ["demo"]).output)


COMMANDS = {
    (page.name, " ".join(found.split()))
    for page in PAGES
    for found in COMMAND.findall(page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("command", sorted({command for _, command in COMMANDS}))
def test_every_sentence_that_a_command_of_the_docs_credits_changes_the_answer(lookup, command):
    words = shlex.split(command)
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    check_shown(lookup, words[2], result.output.splitlines()[0], result.output)


def test_the_docs_show_such_a_command():
    assert {"answers.md", "explain.py"} <= {page for page, _ in COMMANDS}
