"""vitrail.answer and vitrail.generate: tables of an answer's parts, passages, pages, and what cannot be explained."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from golden2_sets import difference, golden2, keys, span_of, tolerance
from html_reader import Reader
from torch.testing import assert_close
from typer.testing import CliRunner

import vitrail
from vitrail import targets, zoo
from vitrail.errors import InputError, OptionError, OutputError, TargetError, VitrailError
from vitrail.evaluate.answers import ask
from vitrail.evaluate.data.examples import ContextExample
from vitrail.models.prompts import generate_ids, read_prompt
from vitrail.tools.generations import Generation

WORDS = "the red key opens door . blue box holds a gold coin ? which it user assistant answer : <script> & one two"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="module")
def language_model():
    """A tiny Llama and a fast tokenizer of whole words with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = ["<unk>", "</s>", "<user>", "<assistant>", "<system>", "<tool>", *WORDS.split()]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(names), hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=48, eos_token_id=1, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


@pytest.mark.parametrize("folder", ["llm_llama", "llm_gpt2"])
def test_golden_rows(folder):
    case = golden2(folder)
    for key in keys(folder, "gae_rows"):
        inputs, (start, stop) = case.item(key.split("/")[0]), span_of(key)
        found = vitrail.answer(case.model, inputs, start, stop, method="gae", unit="token")
        real = inputs["attention_mask"][0].bool().numpy()
        for ours, expected in zip(found.table[0].numpy(), case.expected[key], strict=True):
            assert difference(ours[real], expected[real]) < tolerance(folder, "gae_rows")


@pytest.mark.parametrize("method", ["gae", "rollout", "attn_lrp", "ifr", "input_x_gradient"])
def test_a_row_is_the_explanation_of_its_part_alone(method):
    case = golden2("llm_gpt2")
    inputs = {"input_ids": case.item("seq0")["input_ids"]}
    found = vitrail.answer(case.model, inputs, 9, 12, method=method)
    assert found.units == (((9, 10), (10, 11), (11, 12)),)
    for row, (start, stop) in zip(found.table[0], found.units[0], strict=True):
        alone = vitrail.explain(case.model, inputs, method, targets.continuation(start, stop))
        assert_close(row, alone.scores[0], atol=1e-10, rtol=1e-8)
    whole = vitrail.answer(case.model, inputs, 9, 12, method=method, unit="answer").table[0, 0]
    assert_close(whole, vitrail.explain(case.model, inputs, method, targets.continuation(9, 12)).scores[0])


def test_one_forward_pass_explains_all_parts():
    case, runs = golden2("llm_gpt2"), []
    inputs = {"input_ids": case.item("seq0")["input_ids"]}
    vitrail.answer(case.model, inputs, 9, method="gae")
    for method in ("gae", "attn_lrp", "ifr"):
        counted = []
        handle = case.model.transformer.h[0].register_forward_hook(lambda *_, seen=counted: seen.append(1))
        for stop in (10, 10, 13):  # the first call measures the structure too
            counted.clear()
            vitrail.answer(case.model, inputs, 9, stop, method=method)
            runs.append(len(counted))
        handle.remove()
        assert runs[-1] == runs[-2], method


def test_samples_may_have_answers_of_different_lengths():
    case = golden2("llm_llama", "sdpa")
    both = [case.item("seq0"), case.item("seq1")]
    batch = {name: torch.cat([one[name] for one in both]) for name in ("input_ids", "attention_mask")}
    found = vitrail.answer(case.model, batch, [10, 12], [13, 14], method="gae")
    assert found.table.shape == (2, 3, 14)
    assert (found.table[1, 2] == 0).all()
    alone = vitrail.answer(case.model, both[1], 12, 14, method="gae").table[0]
    assert_close(found.table[1, :2], alone, atol=2e-6, rtol=1e-5)  # rotary tables are float32


def test_the_sink_is_measured_and_can_be_dropped():
    case = golden2("llm_llama", "sdpa")
    kept, dropped = (vitrail.answer(case.model, case.item("seq1"), 10, method="gae", sink=s) for s in ("keep", "drop"))
    first = case.item("seq1")["attention_mask"][0].int().argmax()
    expected = kept.table[0, :, first] / kept.table[0, :, :10].sum(dim=1)
    assert_close(kept.sink[0], expected)
    assert_close(dropped.sink[0], expected)
    assert (dropped.table[0, :, first] == 0).all()
    assert_close(dropped.table[0, :, first + 1 :], kept.table[0, :, first + 1 :])


def test_a_hop_passes_what_falls_on_the_reasoning_on_to_what_that_rests_on():
    case = golden2("llm_gpt2")
    inputs = {"input_ids": case.item("seq0")["input_ids"]}
    first, second = (vitrail.answer(case.model, inputs, *span, method="gae") for span in ((11,), (8, 11)))
    plain = (first.table - first.own)[0]  # a row's own part says nothing of what it rests on
    steps = (second.table - second.own)[0].clamp(min=0)
    for row, place in enumerate(range(8, 11)):
        steps[row, place:] = 0
    steps = steps / steps.sum(dim=1, keepdim=True)
    found = vitrail.answer(case.model, inputs, 11, method="gae", hops=2, reasoning=(8, 11))
    one = plain[:, 8:11].clamp(min=0) @ steps
    assert_close(found.hops[0, 0], one)
    assert_close(found.hops[0, 1], one[:, 8:11] @ steps)
    assert_close(found.table[0], first.table[0] + found.hops[0].sum(dim=0))


def test_a_generation_names_messages_documents_and_tool_results(language_model):
    model, tokenizer = language_model
    messages = [
        {"role": "system", "content": "answer : it ."},
        {"role": "tool", "content": "the box holds a coin ."},
        {"role": "user", "content": "which key opens the door ?"},
    ]
    documents = ["the red key opens the door . the blue key opens a box .", "the box holds gold ."]
    answer = "red key . it opens ."
    found = vitrail.generate(model, tokenizer, messages, documents=documents, answer=answer, method="gae")
    sources = [one.source for one in found.context]
    assert list(dict.fromkeys(s for s in sources if s != "template")) == [
        "system 1", "tool 2", "document 1", "document 2", "user 3"
    ]  # fmt: skip
    assert [one.text.strip() for one in found.context if one.source == "document 1"] == [
        "the red key opens the door .", "the blue key opens a box ."
    ]  # fmt: skip
    assert [one.text.strip() for one in found.units] == ["red key .", "it opens ."]
    assert found.table.shape == (2, len(found.context))
    first = next(iter(found.tables.values()))
    assert_close(found.table.sum(dim=1), first[:, : found.units[0].start].sum(dim=1))
    assert_close(sum(found.by_source().values()), torch.ones(2))
    cited = found.cite(99)[0]  # what the template wrote is never cited, and its share is said beside
    assert all(one.passage.source != "template" for one in cited)
    assert sum(one.score for one in cited) == pytest.approx(1.0)
    assert_close(found.template_share(), found.by_source()["template"])
    rows = json.loads(re.search(r'application/json">(.*?)</script>', found.to_html(), re.DOTALL)[1])["rows"]
    marks = [column for one in found.context if one.source == "template" for column in range(one.start, one.stop)]
    assert all(row[column] == 0 for row in rows for column in marks)
    assert "the chat template" in found.to_html()


def _written_by(tokenizer, template):
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def test_a_template_that_leaves_out_every_message_is_scored_alone(language_model):
    model, tokenizer = language_model
    silent = _written_by(tokenizer, "a red key .")
    found = vitrail.generate(model, silent, [{"role": "user", "content": "the red key ."}], answer="red key .")
    assert {one.source for one in found.context} == {"template"}
    assert float(found.template_share()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        # Words that the template writes, too.
        (TEMPLATE, ["box", "<user>", "answer"], ["user 1: box", "user 2: <user>", "user 3: answer"]),
        (TEMPLATE, ["  the box . a key ? "], ["user 1: the box .", "user 1: a key ?"]),
        ("the box {{ messages[0].content | replace('red', 'blue') | trim }} .", [" red box\n"], ["user 1: blue box"]),
        ("a {{ messages[1].content }} {{ messages[0].content }}", ["a", "key a"], ["user 2: key a", "user 1: a"]),
        # Not the text without marks: what stands in it twice is not guessed.
        ("a box {% if messages[0].content in ('a', 'key') %}{{ messages[0].content }}{% endif %}", ["a"], []),
        (
            "a box {% if messages[0].content in ('a', 'key') %}{{ messages[0].content }}{% endif %}",
            ["key"],
            ["user 1: key"],
        ),
    ],
)
def test_messages_are_found_where_the_template_writes_them(language_model, template, messages, expected):
    chat = [{"role": "user", "content": text} for text in messages]
    read = read_prompt(_written_by(language_model[1], template), chat, None)
    assert [f"{one.source}: {one.text.strip()}" for one in read.passages if one.source != "template"] == expected


def test_a_message_may_be_a_call_of_a_tool_alone(language_model):
    template = "{% for m in messages %}{{ m.content or m.tool_calls[0] }} {% endfor %}"
    chat = [
        {"role": "assistant", "content": None, "tool_calls": ["box"]},
        {"role": "tool", "content": "a key ."},
        {"role": "user", "content": "which ?"},
    ]
    read = read_prompt(_written_by(language_model[1], template), chat, None)
    assert [(one.source, one.text.strip()) for one in read.passages if one.source != "template"] == [
        ("tool 2", "a key ."),
        ("user 3", "which ?"),
    ]


def test_a_prompt_of_one_passage_is_scored_token_by_token(language_model):
    model, tokenizer = language_model
    found = vitrail.generate(model, tokenizer, "the red key opens", answer="a door", unit="answer")
    given = tokenizer("the red key opens a door", return_tensors="pt")
    expected = vitrail.explain(model, given, target=targets.continuation(4))
    single = [(place, place + 1) for place in range(4)]
    by_token = vitrail.explain(model, given, "soft_ablation", targets.continuation(4), sources=single)
    for one in (expected.scores, found.tables["soft_ablation"]):
        assert_close(one, by_token.scores)


def test_generation_is_the_models_own_and_leaves_no_trace(language_model):
    model, tokenizer = language_model
    prompt = "the red key opens the door . which key ?"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    found = vitrail.generate(model, tokenizer, prompt, max_new_tokens=5, unit="answer", method=["gae", "ifr"])
    assert found.text == tokenizer.decode(expected, skip_special_tokens=True)
    (cited,) = found.cite(2)
    shares = found.shares()
    assert shares.shape[0] == 2
    assert all(one.low <= one.score <= one.high for one in cited)
    assert cited[0].score == pytest.approx(float(shares.mean(dim=0).max()))
    sampled = [
        vitrail.generate(
            model, tokenizer, prompt, max_new_tokens=5, generation={"do_sample": True, "seed": 3}, unit="answer"
        ).text
        for _ in range(2)
    ]
    assert sampled[0] == sampled[1]


@pytest.mark.parametrize("hops", [None, 1])
def test_several_methods_explain_an_answer_from_one_pass(language_model, hops):
    model, tokenizer = language_model
    given = {"answer": "the red key . it opens the door . answer : red", "unit": "sentence", "hops": hops}
    methods = ["gae", "gae(readout=gradient)", "attcat"]
    runs = []
    handle = model.register_forward_pre_hook(lambda *_: runs.append(1))  # a shadow has the hooks of its model
    try:
        alone = [vitrail.generate(model, tokenizer, "which key ?", method=one, **given) for one in methods]
        runs.clear()
        vitrail.generate(model, tokenizer, "which key ?", method="gae", **given)
        once = len(runs)
        runs.clear()
        found = vitrail.generate(model, tokenizer, "which key ?", method=methods, **given)
    finally:
        handle.remove()
    assert once == len(runs) == (1 if hops is None else 2)
    for one, name in zip(alone, methods, strict=True):
        assert_close(found.tables[name], one.tables[name])
        assert (name in found.hops) == (hops is not None)


def test_hops_pass_through_what_was_generated_before_the_final_answer(language_model):
    model, tokenizer = language_model
    given = {"answer": "the red key . it opens the door . answer : red", "method": "gae", "unit": "answer"}
    plain = vitrail.generate(model, tokenizer, "which key ?", reasoning="door .", **given)
    assert [one.text.strip() for one in plain.units] == ["answer : red"]
    assert [one.text.strip() for one in plain.context if one.source == "reasoning"] == [
        "the red key .",
        "it opens the door .",
    ]
    assert plain.by_hop is None
    found = vitrail.generate(model, tokenizer, "which key ?", reasoning="door .", hops=2, **given)
    assert found.by_hop.shape == (2, 1, len(found.context))
    assert_close(found.table, plain.table + found.by_hop.sum(dim=0))
    last = vitrail.generate(model, tokenizer, "which key ?", hops=2, **given)  # the last sentence is the answer
    assert_close(last.table, found.table)
    again = Generation(**{**vars(found)})
    assert json.loads(again.to_json())["hops"]["gae"] == found.hops["gae"].tolist()


def test_a_page_escapes_everything_and_loads_nothing(language_model, tmp_path):
    model, tokenizer = language_model
    found = vitrail.generate(model, tokenizer, "<script> & the red key . which ?", answer="<script> red . it .")
    page = found.to_html()
    outside = re.findall(r"""(?:src|href)=|https?://|@import|url\(""", page)
    assert outside == []
    assert page.count("<script") == 2  # the data and the code; none from the text
    assert "&lt;script&gt; red" in page
    data = json.loads(re.search(r'application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert len(data["rows"]) == len(data["cited"]) == 2
    assert max(map(abs, data["rows"][0])) == 1
    tags = Reader(page).tags
    assert [attrs["aria-pressed"] for tag, attrs in tags if tag == "button"] == ["false", "false"]  # one for each unit
    assert any("aria-live" in attrs for _, attrs in tags)  # what is chosen is said
    first, second = found.units
    blank = replace(found, units=(replace(first, text="\n"), second)).to_html()  # every button has something to read
    assert re.findall(r'aria-pressed="false">(.*?)</button>', blank, re.DOTALL) == ["·", second.text]
    assert found._repr_html_() in page
    found.save(tmp_path / "a.HTM")
    assert (tmp_path / "a.HTM").read_text(encoding="utf-8") == page
    found.save(tmp_path / "a.json")
    again = Generation.load(tmp_path / "a.json")
    assert again.to_json() == found.to_json()
    assert again.cite(1) == found.cite(1)
    assert found.plot().axes
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(vitrail.VitrailError, match="cannot be read"):
        Generation.load(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": "  "}, "prompt is empty"),
        ({"prompt": "\u200b"}, "prompt is empty"),
        ({"prompt": []}, "at least one is needed"),
        ({"prompt": [{"role": "user", "content": " "}]}, "prompt is empty"),
        ({"prompt": "the key \ud800"}, "prompt is no text: at letter 8 .* half of a letter"),
        ({"prompt": "the key", "answer": "\ud800"}, "answer is no text"),
        ({"prompt": "the key", "answer": ""}, "answer is empty.*has a chat template: give the prompt as"),
        ({"prompt": [{"role": "user", "content": "the key"}], "answer": ""}, "answer is empty.*has no token.$"),
        ({"prompt": "the key", "answer": "red " * 60}, "2 . 60 tokens, but .* has 48 positions"),
        ({"prompt": "the key", "max_new_tokens": 60}, "60 may be generated, but .* has 48 positions"),
        ({"prompt": "the key", "generation": {"do_sample": True}}, "add a seed"),
        ({"prompt": "the key", "answer": "red", "unit": "letter"}, "unit='letter' is not a choice"),
        ({"prompt": "the key", "answer": "red", "documents": "one text"}, "list of texts"),
        ({"prompt": "the key", "answer": "red", "method": "gea"}, "Did you mean gae"),
        ({"prompt": "the key", "answer": "red", "sink": "hide"}, "sink='hide'"),
        ({"prompt": "the key", "answer": "red", "hops": 1}, "answer is one sentence"),
        ({"prompt": "the key", "answer": "red", "reasoning": "</think>"}, "it is not in the answer"),
        ({"prompt": "the key", "answer": "it . red", "reasoning": "red"}, "nothing is after it"),
        ({"prompt": "the key", "answer": "it . red", "hops": -1}, "hops=-1"),
    ],
)
def test_what_cannot_be_generated_is_one_clear_error(language_model, given, words):
    with pytest.raises(vitrail.VitrailError, match=words):
        vitrail.generate(*language_model, **given)


def test_models_without_a_head_and_strange_tokenizers_are_refused(language_model):
    model, tokenizer = language_model
    with pytest.raises(vitrail.VitrailError, match="no language-model head"):
        vitrail.generate(model.model, tokenizer, "the key")
    with pytest.raises(vitrail.VitrailError, match="reads its prompt with an encoder"):
        vitrail.generate(golden2("encdec_t5").model, tokenizer, "the key")
    source = {"input_ids": torch.arange(5, 12)[None]}
    with pytest.raises(InputError, match="no decoder_input_ids"):
        vitrail.answer(golden2("encdec_t5").model, source, 1)
    decoded = {**source, "decoder_input_ids": torch.arange(5)[None]}
    with pytest.raises(OptionError, match="those of its source"):  # whose columns are not those of the reasoning
        vitrail.answer(golden2("encdec_t5").model, decoded, 3, method="gae", hops=1, reasoning=(1, 3))
    small = golden2("llm_gpt2").model
    with pytest.raises(TargetError, match="gives encodings of shape"):  # whose width may exceed the ids of the answer
        vitrail.answer(small.transformer, {"input_ids": torch.arange(5, 12)[None]}, 4, method="gae")
    tokenizer_too_large = type("Large", (), {"is_fast": True, "__len__": lambda self: 10**6})()
    with pytest.raises(vitrail.VitrailError, match="Is it the model's own"):
        vitrail.generate(model, tokenizer_too_large, "the key")
    with pytest.raises(vitrail.VitrailError, match="needs the tokens as text"):
        vitrail.answer(small, {"input_ids": torch.arange(5, 12)[None]}, 4, unit="word")


def test_the_command_line_answers(language_model, tmp_path):
    from vitrail.apps.cli.app import app

    model, tokenizer = language_model
    model.save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    (tmp_path / "doc.txt").write_text("the red key opens the door . the box holds gold .")
    out = tmp_path / "page.html"
    args = ["answer", "which key ?", "--model", str(tmp_path / "lm"), "--context", str(tmp_path / "doc.txt")]
    result = CliRunner().invoke(app, [*args, "--answer", "red key .", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "document 1: the red key opens the door ." in result.output
    assert "red key" in out.read_text()
    wrong = CliRunner().invoke(app, ["answer", "which ?", "--model", str(tmp_path / "none")])
    assert wrong.exit_code != 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"caf\xe9", "doc.txt is not text in UTF-8: byte 3"),
        (b" \n", "doc.txt is empty"),
        (None, "there is no file"),
    ],
)
def test_a_context_that_cannot_be_read_is_named(content, words, tmp_path):
    from vitrail.apps.cli.explain import read_document

    if content is not None:
        (tmp_path / "doc.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_document(tmp_path / "doc.txt")


def test_the_mark_that_some_programs_begin_a_text_with_is_not_part_of_it(tmp_path):
    from vitrail.apps.cli.explain import read_document

    (tmp_path / "doc.txt").write_bytes(b"\xef\xbb\xbfthe red key")
    assert read_document(tmp_path / "doc.txt") == "the red key"


def test_the_example_of_the_page_runs(language_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small, tokenizer = language_model
    model = type(small)(type(small.config)(**{**small.config.to_dict(), "max_position_embeddings": 128})).eval()
    page = (Path(__file__).parents[1] / "docs/answers.md").read_text()
    given = {"vitrail": vitrail, "model": model, "tokenizer": tokenizer, "letter": "red key .", "diary": "it opens ."}
    exec(re.search(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1], given)
    assert (tmp_path / "answer.html").stat().st_size > 1000


@pytest.fixture(scope="module")
def lookup():
    return zoo.load("lookup")


LOOKED_UP = "Anna: ring. Boris: key. Clara: lamp. David: map. Boris:"


def test_log_odds_are_the_sum_over_tokens_and_their_gradient_does_not_vanish(lookup):
    inputs = lookup.preprocess(f"{LOOKED_UP} key.")
    target = targets.continuation(8, scalar="log_odds")
    found = vitrail.explain(lookup.model, inputs, "input_x_gradient", target)
    with torch.no_grad():
        p = lookup.model(**inputs).logits[0, 7:9].double().softmax(dim=1)[[0, 1], inputs["input_ids"][0, 8:]]
    rows = vitrail.record(lookup.model, inputs, target)
    assert_close(rows.scalar.detach().double(), (p / (1 - p)).log().sum()[None], rtol=1e-3, atol=1e-3)
    plain = vitrail.explain(lookup.model, inputs, "input_x_gradient", targets.continuation(9))
    odds = vitrail.explain(lookup.model, inputs, "input_x_gradient", targets.continuation(9, scalar="log_odds"))
    assert odds.scores.abs().max() > 100 * plain.scores.abs().max()
    assert str(found.target) == "log-odds of tokens 8 to 9"
    with pytest.raises(TargetError, match="log_odds"):
        targets.continuation(9, scalar="logodds")


def test_a_rows_own_part_is_no_reason_for_an_answer(lookup):
    found = vitrail.generate(lookup.model, lookup.preprocess.tokenizer, LOOKED_UP, method=["gae", "tokentm"])
    (cited,) = found.cite(1)
    assert cited[0].passage.text == " Boris: key."
    assert cited[0].low > 0.5
    whole = vitrail.answer(lookup.model, lookup.preprocess(f"{LOOKED_UP} key."), 9, method="gae")
    assert_close(found.tables["gae"], (whole.table - whole.own)[0])
    assert float(whole.own[0, 0, 8]) == pytest.approx(1.0)


def test_a_method_with_hops_of_its_own_is_given_them(lookup):
    inputs = lookup.preprocess(f"{LOOKED_UP} key.")
    for given in ({}, {"hops": 0}, {"hops": 3, "reasoning": (4, 9)}):
        found = vitrail.answer(lookup.model, inputs, 9, method="flashtrace", **given)
        direct = vitrail.explain(lookup.model, inputs, "flashtrace", targets.continuation(9), **given)
        assert_close(found.table[:, 0], direct.scores)
        hops = given.get("hops", 1)
        assert (found.hops is None) == (hops == 0)
        assert hops == 0 or list(found.hops.shape) == [1, hops, 1, 10]
    with pytest.raises(OptionError, match="hops=-1"):
        vitrail.answer(lookup.model, inputs, 9, method="flashtrace", hops=-1)
    joined = vitrail.generate(
        lookup.model, lookup.preprocess.tokenizer, LOOKED_UP, answer="Anna: ring. key.", reasoning="ring.", hops=2,
        method=["gae", "flashtrace"],
    )  # fmt: skip
    assert {name: len(one) for name, one in joined.hops.items()} == {"gae": 2, "flashtrace": 2}


@pytest.mark.parametrize("method", ["context_cite", "sentence_drop", "leave_one_out"])
def test_methods_that_remove_passages_are_given_those_of_the_prompt(lookup, method):
    found = vitrail.generate(lookup.model, lookup.preprocess.tokenizer, LOOKED_UP, method=method)
    table = found.table[0]
    assert int(table[:4].argmax()) == 1
    assert table[1] > 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"generation": {"do_sample": True, "seed": "a"}}, "seed of generation is a whole number"),
        ({"generation": {"do_sample": True, "seed": 2**70}}, "seed of generation is a whole number"),
        ({"generation": {"streamer": 1}}, "generate refused its arguments"),
        ({"generation": {"num_return_sequences": 2}}, "one answer is explained"),
        ({"method": []}, "it is a name of vitrail.METHODS"),
        ({"method": ["gae", "gae"]}, "names one twice"),
        ({"reasoning": ""}, "the text that ends the reasoning"),
        ({"answer": "Anna: ring. key.", "hops": -1}, "hops=-1"),
        ({"answer": "key.", "scalar": "odds"}, "scalar='odds'"),
    ],
)
def test_arguments_of_another_kind_are_one_clear_line(lookup, given, words):
    with pytest.raises(VitrailError, match=words) as caught:
        vitrail.generate(lookup.model, lookup.preprocess.tokenizer, LOOKED_UP, **given)
    assert "\n" not in str(caught.value)


def test_an_answer_that_begins_after_the_text_or_has_strange_hops_is_refused(lookup):
    inputs = lookup.preprocess(LOOKED_UP)
    with pytest.raises(TargetError, match="start=9 of sample 0 is outside the input, with columns 0 to 8"):
        vitrail.answer(lookup.model, inputs, 9)
    with pytest.raises(OptionError, match="hops=-1"):
        vitrail.answer(lookup.model, inputs, 8, hops=-1, reasoning=(1, 2))
    with pytest.raises(InputError, match="whole numbers"):
        vitrail.answer(lookup.model, {"input_ids": inputs["input_ids"].float()}, 8)


def test_methods_may_be_written_with_options_and_tables_must_fit_when_read_again(lookup, tmp_path):
    method = ["gae", "gae(readout=gradient)"]
    found = vitrail.generate(lookup.model, lookup.preprocess.tokenizer, LOOKED_UP, answer="key.", method=method)
    assert list(found.tables) == method
    path = tmp_path / "answer.json"
    found.save(path)
    assert Generation.load(path).to_json() == found.to_json()
    path.write_text(json.dumps({**json.loads(found.to_json()), "tables": {"gae": [[1.0]]}}), encoding="utf-8")
    with pytest.raises(OutputError, match="the table of gae has shape"):
        Generation.load(path)


def test_a_letter_of_several_tokens_does_not_cut_a_passage():
    """Byte-level tokens of one letter share its place in the text; none of them is the template's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    read = read_prompt(tokenizer, "Tokyo is 東京 🗼 now. Yes.", None)
    assert [(one.source, one.text) for one in read.passages] == [
        ("prompt", "Tokyo is 東京 🗼 now. "),
        ("prompt", "Yes."),
    ]
    assert "".join(read.pieces) == read.text
    assert len(read.ids) == len(read.text.encode())


def test_the_bench_and_generate_end_an_answer_at_the_same_tokens(language_model):
    """A chat model has an end of its turns beside the end of a text, which its tokenizer does not name."""
    plain, tokenizer = language_model
    torch.manual_seed(3)
    model = type(plain)(plain.config).eval()
    context = ContextExample("a", ("the red key opens a door .", "the box is red ."), "which key ?")
    chat = [{"role": "user", "content": f"{' '.join(context.sentences)}\n\n{context.question}"}]
    prompt = read_prompt(tokenizer, chat, None)
    freely = generate_ids(model, prompt.ids, 8)
    turn = next(i for i, one in enumerate(freely) if i and one not in freely[:i])
    model.generation_config.eos_token_id = [1, freely[turn]]
    assert tokenizer.eos_token_id == 1
    found = vitrail.generate(model, tokenizer, chat, unit="answer", method="gae", max_new_tokens=8)
    asked = ask(model, tokenizer, context, max_new_tokens=8)
    assert asked.ids[: asked.start].tolist() == list(prompt.ids)
    assert asked.ids[asked.start : asked.stop].tolist() == freely[:turn]
    assert found.text == tokenizer.decode(freely[:turn], clean_up_tokenization_spaces=False)
    assert [(one.start, one.stop) for one in found.units] == [(asked.start, asked.stop)]


def test_what_is_given_as_the_end_of_an_answer_is_no_part_of_it(language_model):
    model, tokenizer = language_model
    ids = tokenizer("the red key")["input_ids"]
    (first,) = generate_ids(model, ids, 1)
    assert generate_ids(model, ids, 4, {"eos_token_id": first}) == []
    with pytest.raises(InputError, match="the answer is empty"):
        vitrail.generate(model, tokenizer, "the red key", max_new_tokens=4, generation={"eos_token_id": first})


def test_an_answer_of_no_token_and_a_prompt_that_is_too_long_are_refused_in_the_same_words(language_model):
    plain, tokenizer = language_model
    model = copy.deepcopy(plain)
    context = ContextExample("a", ("the red key opens a door .",), "which key ?")
    chat = [{"role": "user", "content": "the red key opens a door .\n\nwhich key ?"}]
    (first,) = generate_ids(model, read_prompt(tokenizer, chat, None).ids, 1)
    model.generation_config.eos_token_id = [1, first]
    doors = [
        lambda most: vitrail.generate(model, tokenizer, chat, max_new_tokens=most),
        lambda most: ask(model, tokenizer, context, max_new_tokens=most),
    ]
    for most, words in ((8, "the answer is empty"), (100, "and 100 may be generated")):
        said = []
        for door in doors:
            with pytest.raises(InputError, match=words) as caught:
                door(most)
            said.append(str(caught.value))
        assert said[0] == said[1]
