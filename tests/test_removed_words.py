"""Methods that remove words against the plain model on each shortened text, run alone and without padding."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from type_checks import unchecked

import vitrail
from vitrail import targets
from vitrail.errors import InputError
from vitrail.evaluate.metrics import text_curve
from vitrail.models.loading import Loaded

LONG, SHORT = [5, 7, 9, 11, 13, 6, 8, 3], [12, 14, 16, 18, 3]
TIGHT = {"atol": 1e-10, "rtol": 0}


def llama(pad):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, pad_token_id=pad, num_labels=3, initializer_range=0.3,
        )
    )  # fmt: skip


def gpt2(pad):
    from transformers import GPT2Config, GPT2ForSequenceClassification

    return GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=20, pad_token_id=pad, num_labels=3,
            initializer_range=0.3, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def bert(pad):
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=20, pad_token_id=pad or 0, num_labels=3, initializer_range=0.3,
        )
    )  # fmt: skip


class T5Classifier(nn.Module):
    """The encoder of T5, with relative positions, and the mean of its real tokens."""

    def __init__(self, pad):
        from transformers import T5Config, T5EncoderModel

        super().__init__()
        config = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=pad or 0)
        self.encoder, self.head = T5EncoderModel(config), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.encoder(input_ids, attention_mask=mask).last_hidden_state
        pooled = (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return SimpleNamespace(logits=self.head(pooled))


KINDS = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": T5Classifier}


def model_of(kind, pad=0):
    torch.manual_seed(3)
    return KINDS[kind](pad).double().eval()


def padded(side, pad):
    """Two texts of different lengths, padded."""
    fill = len(LONG) - len(SHORT)
    ids = [LONG, [pad] * fill + SHORT if side == "left" else SHORT + [pad] * fill]
    mask = [[1] * len(LONG), [0] * fill + [1] * len(SHORT) if side == "left" else [1] * len(SHORT) + [0] * fill]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@torch.no_grad()
def alone(model, text, c=1):
    return model(input_ids=torch.tensor([text])).logits[0, c].double()


def loss_of_each(model, text, c=1):
    whole = alone(model, text, c)
    return torch.stack([whole - alone(model, text[:i] + text[i + 1 :], c) for i in range(len(text))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "pad"), [("right", 0), ("left", 0), ("right", 13), ("left", 13)])
def test_leave_one_out_is_the_plain_model_on_each_shortened_text(kind, side, pad):
    """The id 13 is a word of the first text too."""
    model, inputs = model_of(kind, pad), padded(side, pad)
    found = vitrail.explain(model, inputs, "leave_one_out", 1, batch=3)
    for row, (text, real) in enumerate(zip((LONG, SHORT), inputs["attention_mask"].bool(), strict=True)):
        assert_close(found.scores[row][real], loss_of_each(model, text), **TIGHT)
        assert not found.scores[row][~real].any()
    moved = kind in ("bert", "gpt2") and side == "left"  # positions are counted from the padding on
    assert ("assumed" in found.provenance) == moved
    if moved:
        assert "runs alone, without its padding" in found.provenance["assumed"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [True, False])
def test_a_model_without_a_padding_id_takes_single_texts(kind, masked):
    model, ids = model_of(kind, None), torch.tensor([LONG])
    given = {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if masked else {})}
    assert_close(vitrail.explain(model, given, "leave_one_out", 1).scores[0], loss_of_each(model, LONG), **TIGHT)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_sentence_that_is_cut_does_not_move_the_row(kind):
    model = model_of(kind, 0)
    given = {"input_ids": torch.tensor([LONG]), "attention_mask": torch.ones(1, len(LONG), dtype=torch.int64)}
    spans = [(0, 2), (2, 3), (3, 7)]
    found = vitrail.explain(model, given, "sentence_drop", 1, sources=spans).scores[0]
    for start, stop in [(1, 2), (2, 3), (3, 7)]:  # the first token is taken for a special one
        lost = alone(model, LONG) - alone(model, LONG[:start] + LONG[stop:])
        assert_close(found[start:stop].sum(), lost, **TIGHT)


def test_context_cite_fits_texts_of_many_lengths_run_alone(monkeypatch):
    pytest.importorskip("sklearn")
    from vitrail.methods import context_cite

    model, spans = model_of("llama", 0), [(1, 2), (2, 4), (4, 7)]
    given = {"input_ids": torch.tensor([LONG]), "attention_mask": torch.ones(1, len(LONG), dtype=torch.int64)}
    seen = []
    monkeypatch.setattr(context_cite, "surrogate", lambda kept, values, _: seen.append((kept, values)) or kept[0] * 1.0)
    vitrail.explain(model, given, "context_cite", 1, sources=spans, ablations=6)
    ((kept, values),) = seen
    for row, value in zip(kept, values, strict=True):
        gone = {t for span, keep in zip(spans, row, strict=True) if not keep for t in range(*span)}
        assert_close(value, alone(model, [x for t, x in enumerate(LONG) if t not in gone]), **TIGHT)


def test_known_special_tokens_stay_and_unknown_ones_are_removed_too():
    model, ids = model_of("bert"), torch.tensor([LONG])
    special = torch.zeros_like(ids)
    special[0, [0, -1]] = 1
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "special_tokens_mask": special}
    found, truth = vitrail.explain(model, given, "leave_one_out", 1).scores[0], loss_of_each(model, LONG)
    assert_close(found[1:-1], truth[1:-1], **TIGHT)
    assert not found[[0, -1]].any()


def test_positions_that_are_given_are_counted_again():
    """Two packed texts: the positions of the second begin anew, and a token that is cut moves those after it alone."""
    model = model_of("bert")
    ids, places = torch.tensor([LONG]), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    found = vitrail.explain(model, {"input_ids": ids, "position_ids": places}, "leave_one_out", 1).scores[0]
    for gone in range(len(LONG)):
        first, second = (4 - (gone < 4), 4 - (gone >= 4))
        short = {
            "input_ids": torch.tensor([LONG[:gone] + LONG[gone + 1 :]]),
            "position_ids": torch.tensor([[*range(first), *range(second)]]),
        }
        with torch.no_grad():
            whole = model(input_ids=ids, position_ids=places).logits[0, 1]
            lost = whole - model(**short).logits[0, 1]
        assert_close(found[gone], lost, **TIGHT)


def test_a_named_position_moves_with_its_token():
    from transformers import BertConfig, BertForTokenClassification

    config = BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=20, num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    model = BertForTokenClassification(config).double().eval()
    found = vitrail.explain(model, {"input_ids": torch.tensor([LONG])}, "leave_one_out", targets.logit(2, position=4))

    @torch.no_grad()
    def read(text, place):
        return model(input_ids=torch.tensor([text])).logits[0, place, 2]

    for gone in (0, 2, 3, 5, 7):
        lost = read(LONG, 4) - read(LONG[:gone] + LONG[gone + 1 :], 4 - (gone < 4))
        assert_close(found.scores[0, gone], lost, **TIGHT)
    assert found.scores[0, 4] == 0


def test_both_ends_of_an_answer_move_with_their_tokens():
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=20, initializer_range=0.3,
    )  # fmt: skip
    model = BertForQuestionAnswering(config).double().eval()
    found = vitrail.explain(model, {"input_ids": torch.tensor([LONG])}, "leave_one_out").scores[0]

    @torch.no_grad()
    def ends(text):
        out = model(input_ids=torch.tensor([text]))
        return torch.stack([out.start_logits[0], out.end_logits[0]])

    whole = ends(LONG)
    places = whole.argmax(dim=1)
    for gone in range(len(LONG)):
        short = ends(LONG[:gone] + LONG[gone + 1 :])
        lost = [whole[i, p] - short[i, p - (gone < p)] for i, p in enumerate(places.tolist()) if gone != p]
        assert_close(found[gone], torch.stack(lost).sum() if lost else torch.zeros(()).double(), **TIGHT)


def test_a_target_function_meets_the_row_of_its_own_sample():
    """It holds one number for each sample of the batch, whatever number of shortened texts runs together."""
    model, inputs = model_of("llama"), padded("right", 0)
    wanted = torch.tensor([2, 0])
    found = vitrail.explain(model, inputs, "leave_one_out", lambda y: y.gather(1, wanted[:, None])[:, 0], batch=2)
    assert_close(found.scores[0], loss_of_each(model, LONG, 2), **TIGHT)
    assert_close(found.scores[1, : len(SHORT)], loss_of_each(model, SHORT, 0), **TIGHT)


def test_one_token_is_too_few():
    with pytest.raises(InputError, match="one token, and nothing is left"):
        vitrail.explain(model_of("gpt2"), {"input_ids": torch.tensor([[7]])}, "leave_one_out", 1)


class Drifting(nn.Module):
    """A model whose answers differ from call to call by random numbers."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = model_of("bert"), 0

    def forward(self, input_ids):
        self.calls += 1
        return self.inner(input_ids=input_ids).logits + torch.rand(1, 3).double()


def test_random_numbers_of_a_model_are_the_same_in_all_passes_of_a_call():
    model, inputs = Drifting().eval(), {"input_ids": torch.tensor([LONG])}
    found = vitrail.explain(model, inputs, "leave_one_out", 1)
    assert_close(found.scores, vitrail.explain(model.inner, inputs, "leave_one_out", 1).scores, **TIGHT)
    assert "random" in found.provenance


@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("gpt2", 0), ("gpt2", None), ("llama", 0), ("llama", None)])
@pytest.mark.parametrize("how", ["delete", "keep"])
def test_removal_curves_are_the_plain_model_on_each_shortened_text(kind, pad, how):
    """The caller's padding, 21, is none that the model knows."""
    model, texts = model_of(kind, pad), [np.array(LONG), np.array(SHORT)]
    given = [np.arange(len(text), dtype=float) for text in texts]

    def score(ids, mask):
        return model(input_ids=ids, attention_mask=mask).logits

    found = text_curve(score, texts, given, [1, 2], how=how, special={3}, pad=21)
    from vitrail.evaluate.metrics.texts import perturbed_ids

    for row, (text, ranked, c) in enumerate(zip(texts, given, (1, 2), strict=True)):
        for level, left in enumerate(perturbed_ids(text, ranked, how=how, special={3})):
            with torch.no_grad():
                p = model(input_ids=torch.tensor(left)[None]).logits[0].softmax(dim=0)[c]
            assert_close(torch.tensor(found.p_k[row, level]), p, atol=1e-10, rtol=0)


class Page:
    """What the page holds of a text whose tokenizer has no special tokens: a model and its padding."""

    def __init__(self, model, ids):
        tokenizer = SimpleNamespace(all_special_ids=[], pad_token_id=0, eos_token_id=None, unk_token_id=None)
        self.sample = SimpleNamespace(inputs={"input_ids": torch.tensor([ids])})
        self.kind = "text"
        self.opened = SimpleNamespace(loaded=Loaded(model, "", "text", "sequence", 2, tokenizer=tokenizer), twin=None)
        self.opened.twin = self.opened


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_the_page_cuts_words_of_texts_without_special_tokens(kind):
    """A blank at the end of the text would be padding to the model, and another row would be read."""
    from vitrail.apps.web import removing

    model = model_of(kind, 0)
    case = Page(model, LONG)
    for cells in ([7], [6, 7], [0, 3], [2]):
        left = [x for i, x in enumerate(LONG) if i not in cells]
        with torch.no_grad():
            truth = model(input_ids=torch.tensor([left])).logits
        with unchecked():
            assert_close(removing._without_tokens(case, cells), truth, **TIGHT)
    with unchecked():
        curves = removing._curves(case, 1, None, -torch.arange(8.0).double()[None], "")
    for level in (1, 5, 9):
        left = LONG[round(len(LONG) * level / 10) :]
        with torch.no_grad():
            p = model(input_ids=torch.tensor([left])).logits.softmax(dim=1)[0, 1]
        assert_close(torch.tensor(curves[0, level]), p, atol=1e-6, rtol=0)
