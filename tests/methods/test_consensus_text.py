"""What `consensus` does to texts: words blanked in copies, scores spread over neighbours."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import spearmanr
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.methods.consensus import bell, blank_of, blanked, copies_disagree, kept, smoothed
from vitrail.models.inputs import read_inputs

TEXTS = [name for name, model in MODELS.items() if model.kind == "text" and "clip" not in name]


def test_every_word_is_missing_in_one_copy_and_all_else_in_none():
    words = torch.tensor([[False, True, True, False, True, True, True, False]])
    keep = kept(words, 3)
    assert_close(keep.sum(dim=0), torch.tensor([[3, 2, 2, 3, 2, 2, 2, 3]]))
    gone = [[t for t in range(8) if not one[0, t]] for one in keep]
    assert gone == [[1, 5], [2, 6], [4]]


@pytest.mark.parametrize(
    ("config", "blank"),
    [
        (SimpleNamespace(pad_token_id=5, eos_token_id=2), 5),
        (SimpleNamespace(pad_token_id=None, eos_token_id=[7, 8]), 7),
        (SimpleNamespace(pad_token_id=-1, eos_token_id=9), 9),
        (None, 0),
    ],
)
def test_a_blank_is_padding_or_the_end_or_the_first_id(config, blank):
    model = nn.Identity()
    if config is not None:
        model.config = config
    assert blank_of(model) == blank


def test_where_positions_are_counted_past_padding_the_end_of_a_text_is_the_blank():
    model = tiny("hf_roberta")
    assert blank_of(model) == model.config.eos_token_id != model.config.pad_token_id
    assert blank_of(tiny("hf_bert")) == tiny("hf_bert").config.pad_token_id


def test_copies_that_share_less_than_two_words_say_nothing():
    words = torch.tensor([[True, True, True], [True, False, False]])
    keep = kept(words, 3)
    assert copies_disagree(torch.rand(3, 2, 3), keep, words).tolist() == [1.0, 1.0]
    words = torch.ones(1, 4, dtype=torch.bool)  # the second and the third copy share the first and the fourth word
    keep = kept(words, 3)
    same = torch.arange(4.0).expand(3, 1, 4)
    assert copies_disagree(same, keep, words).tolist() == pytest.approx([0.0], abs=1e-6)


def test_embeddings_are_blanked_by_zeros():
    inputs = read_inputs({"inputs_embeds": torch.ones(1, 4, 2)})
    keep = torch.tensor([[True, False, True, True]])
    assert_close(blanked(inputs, keep, 3).shown[0, :, 0], torch.tensor([1.0, 0.0, 1.0, 1.0]))


def test_the_disagreement_of_copies_is_over_words_that_both_hold():
    generator = torch.Generator().manual_seed(0)
    words = torch.tensor([[False, *[True] * 9, False]])
    keep = kept(words, 3)
    found = torch.rand(3, 1, 11, generator=generator, dtype=torch.float64) * keep
    apart = []
    for one, two in ((0, 1), (0, 2), (1, 2)):
        both = [t for t in range(11) if words[0, t] and keep[one, 0, t] and keep[two, 0, t]]
        apart.append(1 - spearmanr(found[one, 0, both], found[two, 0, both])[0])
    assert float(copies_disagree(found, keep, words)) == pytest.approx(sum(apart) / 3)


@pytest.mark.parametrize("width", [0.5, 1.0, 2.0])
def test_smoothing_is_the_sum_over_neighbours_by_a_gaussian(width):
    parts = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    content = torch.ones(2, 12, dtype=torch.bool)
    content[0, :1], content[1, 9:] = False, False
    reach = math.ceil(3 * width)
    weights = [math.exp(-0.5 * (d / width) ** 2) for d in range(-reach, reach + 1)]
    expected = torch.zeros_like(parts)
    for b in range(2):
        inside = [t for t in range(12) if content[b, t]]
        for p in range(3):
            for t in inside:
                near = [s for s in inside if abs(s - t) <= reach]
                expected[b, p, t] = sum(weights[s - t + reach] * parts[b, p, s] for s in near) / sum(weights)
    assert_close(smoothed(parts, content, width), expected)


def test_no_width_changes_nothing_and_a_bell_sums_to_one():
    parts = torch.randn(1, 1, 5, dtype=torch.float64)
    assert smoothed(parts, torch.ones(1, 5, dtype=torch.bool), 0.0) is parts
    assert_close(bell(1.7, like=parts).sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("preset", ["recommended", "spans"])
@pytest.mark.parametrize("name", ["hf_bert", "hf_gpt2"])
def test_a_batch_gives_the_same_as_its_texts_one_by_one_and_padding_changes_nothing(name, preset):
    model, inputs = tiny(name), MODELS[name].inputs()
    inputs["attention_mask"][1, 6:] = 0
    inputs["input_ids"] = inputs["input_ids"] * inputs["attention_mask"]
    together = vitrail.explain(model, inputs, "consensus", 1, preset=preset).scores
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        alone = {n: x[row : row + 1, :length] for n, x in inputs.items()}
        found = vitrail.explain(model, alone, "consensus", 1, preset=preset).scores
        assert_close(together[row : row + 1, :length], found)
        assert not together[row, length:].any()


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_model_whose_operations_have_rules_is_explained(name):
    assert bool(torch.isfinite(vitrail.explain(tiny(name), MODELS[name].inputs(), "consensus").scores).all())


def test_of_embeddings_all_but_the_ends_are_blanked_by_zeros_in_turn():
    model = tiny("hf_bert")
    x = torch.randn(1, 7, model.config.hidden_size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    total, times = torch.zeros(7, dtype=torch.float64), torch.zeros(7)
    for first in range(3):
        gone = list(range(1, 6))[first::3]
        left = [t for t in range(7) if t not in gone]
        changed = x.clone()
        changed[0, gone] = 0.0
        total[left] += vitrail.explain(model, {"inputs_embeds": changed}, "attn_lrp", 1).scores[0, left]
        times[left] += 1
    expected = total / times
    expected[0] = 0.0  # the class token is no content
    found = vitrail.explain(model, {"inputs_embeds": x}, "consensus", 1).scores[0]
    assert_close(found, expected / expected.abs().max())


def test_a_model_that_knows_no_padding_and_takes_single_texts_only_is_explained():
    model = copy.deepcopy(tiny("hf_gpt2_classifier"))
    inputs = {name: x[:1] for name, x in MODELS["hf_gpt2_classifier"].inputs().items()}
    expected = vitrail.explain(model, inputs, "consensus", 1).scores
    model.config.pad_token_id, model.config.eos_token_id = None, model.config.pad_token_id  # the same blank
    assert_close(vitrail.explain(model, inputs, "consensus", 1).scores, expected)


def test_where_padding_ends_a_text_the_token_before_it_is_read_in_every_copy():
    model = copy.deepcopy(tiny("hf_gpt2_classifier"))
    model.config.pad_token_id = 2
    ids = torch.tensor([[1, 7, 8, 9, 2]])
    expected = torch.zeros(5, dtype=torch.float64)
    for gone in (1, 2, None):  # the words are 7 and 8: 9 is read, and 1 stands first
        changed = ids.clone()
        changed[0, gone if gone is not None else 4] = 2
        scores = vitrail.explain(model, {"input_ids": changed}, "attn_lrp", 1).scores[0]
        expected += scores * torch.tensor([1 / 3 if t not in (1, 2) else 1 / 2 * (t != gone) for t in range(5)])
    found = vitrail.explain(model, {"input_ids": ids}, "consensus", 1).scores[0]
    assert_close(found, expected / expected.abs().max())
