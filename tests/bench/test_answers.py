"""Protocol `answers` on the embedded lookup model, whose answers rest on a known sentence."""

import json

import pytest
from typer.testing import CliRunner

from vitrail.apps.cli.app import app
from vitrail.errors import InputError, OptionError
from vitrail.evaluate import bench
from vitrail.evaluate.bench import texts
from vitrail.evaluate.bench.opened import open_data
from vitrail.evaluate.bench.texts import held_out_seed
from vitrail.evaluate.data.contexts import read_contexts

METHODS = ("ifr", "attn_lrp", "rollout")


def plan(data="lookup", *, methods=METHODS, protocol="answers(ablations=12)", **more):
    return bench.Plan(
        models=(bench.ModelSpec("lookup"),),
        data=(bench.DataSpec(data, more.pop("path", ""), more.pop("options", {"count": 5, "sentences": 6})),),
        trials=tuple(bench.Trial(name) for name in methods),
        protocols=bench.protocols_of((protocol,)),
        **more,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "results.db"
    bench.run(plan(), path)
    return path


def numbers(path):
    (table,) = bench.tables(path, resamples=50)
    names = [column.name for column in table.columns]
    return {label: dict(zip(names, (e and e.value for e in row), strict=True)) for label, row in table.rows}


def test_the_sentence_that_an_answer_rests_on_is_found_and_priors_do_not_find_it(measured):
    found = numbers(measured)
    assert set(found) == {*METHODS, "random", "position"}
    assert set(found["ifr"]) == {"recall@10 %", "MRR", "LDS", "drop@1", "drop@3", "alone@1", "alone@3"}
    assert found["attn_lrp"]["recall@10 %"] == found["attn_lrp"]["MRR"] == 1.0
    for prior in ("random", "position"):
        assert found[prior]["MRR"] < 0.8
        assert found["attn_lrp"]["LDS"] > found[prior]["LDS"]
        assert found["attn_lrp"]["drop@1"] > found[prior]["drop@1"]
        assert found["attn_lrp"]["alone@1"] < found[prior]["alone@1"]


@pytest.mark.slow
def test_a_run_in_parts_gives_the_same_bytes(measured, tmp_path):
    other = tmp_path / "other.db"
    bench.run(plan(methods=("rollout",), batch=2, protocol="answers(ablations=12)", metrics=("lds",)), other)
    bench.run(plan(batch=3, limit=2), other)
    progress = bench.run(plan(batch=1), other)
    assert progress.done == 5
    assert bench.run(plan(batch=4), other).fresh == 0
    assert bench.render(bench.tables(other)) == bench.render(bench.tables(measured))


def test_other_conventions_are_another_table(measured, tmp_path):
    path = tmp_path / "results.db"
    bench.run(plan(methods=("ifr",), limit=1, protocol="answers(ablations=4, new_tokens=1, scalar=log_odds)"), path)
    (table,) = bench.tables(path)
    assert "protocol answers(ablations=4, new_tokens=1, scalar=log_odds)" in table.title
    assert "4 random ablations" in table.notes[0]
    assert "explained log_odds of the model's answer" in table.notes[0]


def test_a_wrong_answer_is_left_out_and_counted(tmp_path):
    lines = [
        {"sentences": ["Anna: ring.", "Boris: key."], "question": "Anna:", "gold": [0], "value": "ring."},
        {"sentences": ["Anna: ring.", "Boris: key."], "question": "Anna:", "gold": [1], "value": "key."},
        {"context": "Anna: ring. Boris: key. Clara: lamp.", "question": "Boris:"},
    ]
    data = tmp_path / "own.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    bench.run(plan("contexts", path=str(data), options={}, methods=("ifr",)), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert "the model's answer does not hold the value" in table.notes[-1]
    counts = {column.name: estimate.count for column, estimate in zip(table.columns, table.rows[0][1], strict=True)}
    assert counts["LDS"] == 2
    assert counts["MRR"] == 1  # the gold sentence of the third is not known


def test_a_method_that_cannot_explain_one_context_keeps_the_others(tmp_path, monkeypatch):
    real = texts._of_question
    monkeypatch.setattr(
        texts,
        "_of_question",
        lambda question, *rest: [InputError("no")] * 3 if question.gold == (2,) else real(question, *rest),
    )
    golds = [example.gold for example in open_data(plan().data[0])]
    assert golds.count((2,)) in range(1, 5)
    bench.run(plan(methods=("ifr",)), tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert table.rows[0][1][0].count == 5 - golds.count((2,))


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("needle", {"needles": 13}, "needles=13"),
        ("needle", {"sentences": 1, "needles": 2}, "sentences=1"),
        ("variables", {"steps": 0}, "steps=0"),
        ("people", {"sentences": 2}, "sentences=2"),
        ("lookup", {"count": 0}, "count=0"),
        ("lookup", {"seed": -1}, "seed=-1"),
        ("contexts", {}, "the path of contexts is missing"),
    ],
)
def test_contexts_that_cannot_be_written_are_refused(data, options, words):
    with pytest.raises(OptionError, match=words):
        open_data(bench.DataSpec(data, "", options))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"question": "a?"}',
        '{"sentences": [], "question": "a?"}',
        '{"sentences": ["a."], "context": "a.", "question": "a?"}',
        '{"sentences": ["a."], "question": 1}',
        '{"context": 3, "question": "a?"}',
        '{"sentences": ["a."], "question": "a?", "gold": [1]}',
        '{"sentences": ["a."], "question": "a?", "gold": [true]}',
        '{"sentences": ["a.", "b."], "question": "a?", "gold": [0], "value": "b"}',
    ],
)
def test_a_line_that_is_no_context_is_named(tmp_path, line):
    path = tmp_path / "own.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(InputError, match="line-1"):
        read_contexts(path)[0]


def test_protocols_of_other_data_and_models_of_other_tasks_are_refused(tmp_path):
    with pytest.raises(OptionError, match="lookup reads answer data"):
        bench.run(plan("demo_sentences", options={}), tmp_path / "r.db")
    with pytest.raises(OptionError, match="protocol vitrail measures"):
        bench.run(plan(protocol="vitrail"), tmp_path / "r.db")
    with pytest.raises(OptionError, match="ablations=1"):
        bench.find_protocol("answers(ablations=1)")


def test_ablations_differ_between_examples_and_seeds():
    assert len({held_out_seed(seed, key) for seed in (0, 1) for key in ("a", "b")}) == 4


@pytest.mark.slow
def test_the_command_line_runs_it(tmp_path):
    path = str(tmp_path / "results.db")
    said = CliRunner().invoke(
        app, ["bench", "run", "-m", "lookup", "-d", "lookup(count=2, sentences=3)", "--protocol",
              "answers(ablations=4)", "--method", "gae", "--method", "context_cite(ablations=8)", "-o", path],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    shown = CliRunner().invoke(app, ["bench", "table", path])
    assert {"`random`", "`position`", "`gae`"} <= set(shown.output.split())
    assert "context_cite(ablations=8)" in shown.output


def test_log_odds_are_explained_where_the_protocol_says_so(tmp_path, monkeypatch):
    """Both protocols in one run: their explanations must not be shared."""
    asked, real = [], texts.continuation
    monkeypatch.setattr(texts, "continuation", lambda *span, scalar: (asked.append(scalar), real(*span))[1])
    made = plan(methods=("ifr",), limit=1)
    both = bench.protocols_of(("answers(ablations=4)", "answers(ablations=4, scalar=log_odds)"))
    bench.run(bench.Plan(made.models, made.data, made.trials, both, limit=1), tmp_path / "r.db")
    assert asked == ["log_probability", "log_odds"]
    plain, odds = (dict(table.rows) for table in bench.tables(tmp_path / "r.db", resamples=20))
    assert plain["random"] == odds["random"]
