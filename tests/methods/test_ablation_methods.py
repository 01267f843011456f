"""leave_one_out, sentence_drop and context_cite: a language model run again on a text with parts cut out."""

import pytest
import torch
from golden2_sets import golden2
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.methods.context_cite import kept_sources, logit_of, surrogate
from vitrail.models.texts import byte_letters, pieces_of, sentences, words

IDS = torch.tensor([[5, 9, 3, 30, 17, 22, 8, 41, 12, 33]])
SOURCES = [(0, 2), (2, 5), (5, 7)]


def log_p(model, ids, count):
    """The log-probability of the last tokens of one text, from a plain run on it."""
    with torch.no_grad():
        logs = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    return sum(logs[i - 1, ids[i]] for i in range(len(ids) - count, len(ids)))


@pytest.mark.parametrize("name", ["llm_gpt2", "llm_llama"])
def test_a_token_is_worth_what_a_text_without_it_loses(name):
    model, ids = golden2(name).model, IDS[0].tolist()
    found = vitrail.explain(model, {"input_ids": IDS}, "leave_one_out", targets.continuation(7), batch=3).scores[0]
    for place in range(7):
        without = log_p(model, ids[:place] + ids[place + 1 :], 3)
        assert_close(found[place], log_p(model, ids, 3) - without, atol=2e-6, rtol=0)
    assert_close(found[7:], torch.zeros(3, dtype=found.dtype))


def test_padding_on_either_side_changes_nothing():
    model = golden2("llm_llama", "sdpa").model
    alone = vitrail.explain(model, {"input_ids": IDS}, "leave_one_out", targets.continuation(7)).scores
    for where in ((3, 0), (0, 3)):
        padded = {
            "input_ids": torch.nn.functional.pad(IDS, where),
            "attention_mask": torch.nn.functional.pad(torch.ones_like(IDS), where),
        }
        found = vitrail.explain(model, padded, "leave_one_out", targets.continuation(-3)).scores
        assert_close(found, torch.nn.functional.pad(alone, where), atol=2e-6, rtol=0)


def test_a_sentence_is_worth_what_the_answer_loses_without_it():
    model, ids = golden2("llm_gpt2").model, IDS[0].tolist()
    target = targets.continuation(7)
    found = vitrail.explain(model, {"input_ids": IDS}, "sentence_drop", target, sources=SOURCES).scores[0]
    for start, stop in SOURCES:
        loss = log_p(model, ids, 3) - log_p(model, ids[:start] + ids[stop:], 3)
        assert_close(found[start:stop].sum(), loss, atol=1e-9, rtol=0)
        assert_close(found[start:stop], found[start].expand(stop - start))


def test_the_surrogate_finds_the_weights_of_a_linear_answer():
    kept, weights = kept_sources(6, 64, 0), torch.tensor([3.0, 0.0, -1.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    found = surrogate(kept, kept.double() @ weights + 0.7, penalty=1e-4)
    assert_close(found, weights, atol=2e-3, rtol=0)
    sparse = surrogate(kept, kept.double() @ weights, penalty=0.3)
    assert (sparse[[1, 3, 4, 5]] == 0).all()
    assert sparse[0] > 0


def test_the_logit_of_a_sure_answer_is_finite():
    logs = torch.tensor([0.0, -1e-9, -0.5, -800.0])
    assert logit_of(logs).isfinite().all()
    assert_close(logit_of(logs)[2], torch.tensor(0.5).neg().exp().double().logit(), atol=1e-6, rtol=0)


def test_context_cite_gives_each_source_its_weight():
    model, target = golden2("llm_gpt2").model, targets.continuation(7)
    one, again, other = (
        vitrail.explain(
            model, {"input_ids": IDS}, "context_cite", target, sources=SOURCES, ablations=12, seed=seed
        ).scores[0]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert (one[7:] == 0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "sentence_drop"}, "ids without text"),
        ({"method": "context_cite"}, "ids without text"),
        ({"method": "sentence_drop", "sources": [(0, 7)]}, "at least two are needed"),
        *(
            ({"method": "sentence_drop", "sources": [x]}, "pairs of columns")
            for x in (3, "ab", (0, None), (0.5, 2.5), (3, 1))
        ),
        ({"method": "context_cite", "sources": SOURCES, "ablations": 0}, "at least 1"),
    ],
)
def test_sources_that_cannot_be_removed(options, words):
    with pytest.raises(vitrail.VitrailError, match=words):
        vitrail.explain(golden2("llm_gpt2").model, {"input_ids": IDS}, target=targets.continuation(7), **options)


def test_a_missing_scikit_learn_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(vitrail.VitrailError, match=r"vitrail\[answers\]"):
        surrogate(kept_sources(3, 8, 0), torch.arange(8.0).double(), 0.01)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["A", "Ġcat", ".", "ĠIt", "Ġran", "."], ["A cat.", " It ran."]),
        (["Dr", ".", "ĠWho", "?", "ĠYes"], ["Dr. Who?", " Yes"]),
        (["3", ".", "5", "Ġkg", "Ċ", "next"], ["3.5 kg\n", "next"]),
        (["No", "Ġend"], ["No end"]),
    ],
)
def test_sentences_are_spans_of_tokens(tokens, expected):
    pieces = pieces_of(tokens)
    assert ["".join(pieces[a:b]) for a, b in sentences(pieces)] == expected


def test_words_are_spans_of_tokens():
    pieces = pieces_of(["Un", "believ", "able", "Ġcats", ",", "Ġno"])
    assert ["".join(pieces[a:b]) for a, b in words(pieces)] == ["Unbelievable", " cats,", " no"]
    assert pieces_of(["un", "##believ", "##able"]) == (" un", "believ", "able")


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我爱你。他走了。", ["我爱你。", "他走了。"]),
        ("Il dit… «\u00a0Oui\u00a0» Zürich.", ["Il dit…", "«\u00a0Oui\u00a0» Zürich."]),
    ],
)
def test_tokens_of_bytes_are_cut_into_the_sentences_that_their_text_has(text, expected, width):
    letters = "".join({value: letter for letter, value in byte_letters().items()}[byte] for byte in text.encode())
    found = pieces_of([letters[i : i + width] for i in range(0, len(letters), width)])
    assert "".join(found) == text
    assert ["".join(found[a:b]).strip() for a, b in sentences(found)] == expected


def test_tokens_of_letters_are_not_taken_for_bytes():
    assert pieces_of(["café"]) == ("café",)
    assert pieces_of(["café", "##s"]) == (" café", "s")
    assert pieces_of(["naïve", "."]) == ("naïve", ".")


class OneLength(torch.nn.Module):
    """A language model with a place for each of its tokens, no more and no fewer."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(60, 12), torch.nn.Linear(12, 60)
        self.places = torch.nn.Parameter(torch.randn(IDS.shape[1], 12))
        self.blocks = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)])

    def forward(self, input_ids):
        later = torch.ones(len(self.places), len(self.places), dtype=torch.bool).triu(1)
        return self.head(self.blocks[0](self.words(input_ids) + self.places, later))


@pytest.mark.parametrize(("method", "options"), [("leave_one_out", {}), ("context_cite", {"sources": SOURCES})])
def test_a_model_of_texts_of_one_length_is_refused_by_methods_that_remove_tokens(method, options):
    with pytest.raises(vitrail.errors.InputError, match=r"OneLength was run on \d of 10 tokens, because this method"):
        vitrail.explain(OneLength().eval(), {"input_ids": IDS}, method, targets.continuation(7), **options)


class Counted(torch.nn.Module):
    """Reads as many tokens as an argument says; or takes it for something else."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(0)
        self.use, self.table, self.head = use, torch.nn.Embedding(50, 16), torch.nn.Linear(16, 3)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.double().eval()

    def forward(self, input_ids, **more):
        ((_, number),) = more.items()
        padding = torch.arange(input_ids.shape[1]) >= number.view(-1, 1)
        x = self.layer(self.table(input_ids), src_key_padding_mask=padding if self.use == "length" else None)
        if self.use == "length":
            return self.head((x * ~padding[..., None]).sum(dim=1) / number.view(-1, 1))
        return self.head(x.mean(dim=1)) * (1 + number.view(-1, 1))


@pytest.mark.parametrize("name", ["lengths", "how_many"])
def test_a_length_follows_the_tokens_that_are_cut_out(name):
    model, ids, count = Counted("length"), IDS[:, :6], torch.tensor([[4]])
    found = vitrail.explain(model, {"input_ids": ids, name: count}, "leave_one_out", 1).scores[0]
    whole = model(ids, **{name: count})[0, 1]
    without = [model(torch.cat([ids[:, :i], ids[:, i + 1 : 4]], dim=1), **{name: count - 1})[0, 1] for i in range(4)]
    assert_close(found, torch.stack([*(whole - x for x in without), *[torch.zeros_like(whole)] * 2]).detach())


def test_a_whole_number_that_counts_nothing_stays_as_it_is():
    model, ids, kind = Counted("factor"), IDS[:, :6], torch.tensor([6])
    found = vitrail.explain(model, {"input_ids": ids, "kind": kind}, "leave_one_out", 1).scores[0]
    without = [model(torch.cat([ids[:, :i], ids[:, i + 1 :]], dim=1), kind=kind)[0, 1] for i in range(6)]
    assert_close(found, (model(ids, kind=kind)[0, 1] - torch.stack(without)).detach())


def test_an_argument_that_seems_to_be_a_length_and_is_none_is_refused_by_name():
    inputs = {"input_ids": IDS[:, :6], "lengths": torch.tensor([6])}
    with pytest.raises(vitrail.errors.InputError, match="'lengths' holds one whole number for each text, 6"):
        vitrail.explain(Counted("factor"), inputs, "leave_one_out", 1)
