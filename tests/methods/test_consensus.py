from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import MethodError, OptionError
from vitrail.evaluate import metrics
from vitrail.methods import consensus
from vitrail.methods.consensus import blank_of, smoothed, smoothed_grid

PUBLISHED = [("gae", {}), ("attn_lrp", {}), ("le_grad", {"tokens": "readout"})]


def scaled(values, power, negative):
    """One image's scores from zero to one, or to the largest magnitude, to a power."""
    if negative == "drop":
        values = [max(v, 0.0) for v in values]
        low, high = min(values), max(values)
        if high == low:  # no score was above zero
            return [0.0] * len(values)
        return [((v - low) / (high - low)) ** power for v in values]
    largest = max(abs(v) for v in values)
    return [(1 if v > 0 else -1) * (abs(v) / largest) ** power for v in values]


def by_hand(name, target, *, power=0.5, negative="drop", methods=PUBLISHED):
    """The sum, from the published methods asked one by one."""
    found = vitrail.compare(tiny(name), MODELS[name].inputs(), methods, target)
    scores = [a.scores if a.own is None else a.scores - a.own for a in found]
    # Patches come without the class token; a text keeps it, at zero.
    before = MODELS[name].prefix if MODELS[name].kind == "text" else 0
    rows = [
        [[0.0] * before + scaled(part[i, before:].tolist(), power, negative) for part in scores]
        for i in range(len(found[0]))
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("name", ["hf_vit", "timm_vit_avg", "hf_bert", "hf_gpt2"])
@pytest.mark.parametrize(("power", "negative"), [(0.5, "drop"), (1.0, "keep")])
def test_it_is_the_sum_of_the_published_methods_brought_to_scale(name, power, negative):
    model, inputs = tiny(name), MODELS[name].inputs()
    parts = "gae+attn_lrp+le_grad"
    found = vitrail.explain(model, inputs, "consensus", 1, parts=parts, power=power, negative=negative, smooth=0.0)
    expected = by_hand(name, 1, power=power, negative=negative)
    assert_close(found.layers, expected)
    assert_close(found.scores, expected.sum(dim=1))
    assert found.provenance["parts"] == ["gae", "attn_lrp", "le_grad"]
    assert found.signed == (negative == "keep")


def test_a_part_alone_tells_no_disagreement():
    found = vitrail.explain(tiny("hf_vit"), MODELS["hf_vit"].inputs(), "consensus", 1, parts="gae")
    assert found.provenance["parts"] == ["gae"]
    assert "disagreement" not in found.provenance


def test_parts_can_be_left_out():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    found = vitrail.explain(model, inputs, "consensus", 1, parts="attn_lrp+gae", smooth=0.0)
    assert_close(found.layers, by_hand("hf_vit", 1, methods=[("attn_lrp", {}), ("gae", {})]))
    assert found.provenance["parts"] == ["attn_lrp", "gae"]


@pytest.mark.parametrize("name", ["hf_vit", "timm_vit_avg"])
def test_on_images_four_methods_are_weighed_and_lightly_smoothed(name):
    parts = by_hand(name, 1, methods=[*PUBLISHED, ("att_grads", {})])
    weighed = parts * torch.tensor([1.0, 0.5, 1.0, 0.5], dtype=torch.float64)[:, None]
    found = vitrail.explain(tiny(name), MODELS[name].inputs(), "consensus", 1)
    expected = spread_by_hand(weighed.unflatten(2, found.grid), 0.4)
    assert_close(found.layers, expected.flatten(2), rtol=1e-5, atol=1e-5)  # by hand only the next patches are met
    assert_close(found.layers.sum(dim=1), found.scores)
    assert found.provenance["parts"] == ["gae", "attn_lrp", "le_grad", "att_grads"]


def spread_by_hand(parts, width):
    """A Gaussian over three by three patches in plain loops; the border stands again beyond the border."""
    near = np.exp(-0.5 / width**2)
    line = {-1: near / (1 + 2 * near), 0: 1 / (1 + 2 * near), 1: near / (1 + 2 * near)}
    rows, columns = parts.shape[2:]
    found = torch.zeros_like(parts)
    for y in range(rows):
        for x in range(columns):
            for down, one in line.items():
                for right, other in line.items():
                    place = min(max(y + down, 0), rows - 1), min(max(x + right, 0), columns - 1)
                    found[:, :, y, x] += one * other * parts[:, :, place[0], place[1]]
    return found


def test_lengths_are_gae_with_the_length_weights_of_tokentm():
    options = {"direction": False, "ffn": False, "initial": "identity", "scalar": "logit"}
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    found = vitrail.explain(model, inputs, "consensus", 1, parts="lengths", smooth=0.0)
    assert_close(found.layers, by_hand("hf_vit", 1, methods=[("tokentm", options)]))


def blanked_by_hand(name, target):
    """AttnLRP of three texts, each with every third word replaced by padding, one by one, and the mean over those
    that hold a token."""
    model, inputs = tiny(name), MODELS[name].inputs()
    ids, valid = inputs["input_ids"], inputs["attention_mask"].bool()
    total, times = torch.zeros(ids.shape, dtype=torch.float64), torch.zeros(ids.shape)
    for row in range(len(ids)):
        real = [t for t in range(ids.shape[1]) if valid[row, t]]
        ends = (ids[row, real[0]], ids[row, real[-1]])
        words = [t for t in real if ids[row, t] not in ends]
        for copy in range(3):
            gone = words[copy::3]
            changed = {n: x[row : row + 1].clone() for n, x in inputs.items()}
            changed["input_ids"][0, gone] = blank_of(model)
            scores = vitrail.explain(model, changed, "attn_lrp", target).scores[0]
            for t in real:
                if t not in gone:
                    total[row, t] += scores[t]
                    times[row, t] += 1
    found = total / times.clamp(min=1)
    found[:, : MODELS[name].prefix] = 0.0
    return found / found.abs().amax(dim=1, keepdim=True)


@pytest.mark.parametrize("name", ["hf_bert", "hf_distilbert", "hf_roberta"])
def test_on_text_it_is_attn_lrp_on_copies_with_every_third_word_blanked(name):
    found = vitrail.explain(tiny(name), MODELS[name].inputs(), "consensus", 1)
    assert_close(found.scores, blanked_by_hand(name, 1))
    assert found.signed
    assert found.provenance["parts"] == ["blanked_lrp"]
    assert all(0 <= apart <= 2 for apart in found.provenance["disagreement"])


def test_attn_lrp_and_integrated_gradients_can_be_added():
    model, inputs = tiny("hf_roberta"), MODELS["hf_roberta"].inputs()
    found = vitrail.explain(model, inputs, "consensus", 1, parts="attn_lrp+integrated_gradients")
    words = ("integrated_gradients", {"level": "inputs_embeds", "steps": 3})
    expected = by_hand("hf_roberta", 1, power=1.0, negative="keep", methods=[("attn_lrp", {}), words])
    assert_close(found.layers, expected)


@pytest.mark.parametrize("name", ["hf_bert", "hf_gpt2"])
def test_spans_are_attn_lrp_and_agcam_spread_over_neighbours(name):
    plain = by_hand(name, 1, power=1.0, negative="keep", methods=[("attn_lrp", {}), ("agcam", {})])
    found = vitrail.explain(tiny(name), MODELS[name].inputs(), "consensus", 1, preset="spans")
    valid = MODELS[name].inputs()["attention_mask"].bool()
    content = valid & (torch.arange(valid.shape[1]) >= MODELS[name].prefix)
    assert_close(found.layers, smoothed(plain, content, 1.0))
    assert_close(found.scores, found.layers.sum(dim=1))


@pytest.mark.parametrize("part", ["integrated_gradients", "blanked_lrp"])
def test_parts_of_words_take_part_in_text_only(part):
    with pytest.raises(MethodError, match=rf"its part {part} does not.*text"):
        vitrail.explain(tiny("hf_vit"), MODELS["hf_vit"].inputs(), "consensus", parts=part)


def test_disagreement_is_one_minus_the_mean_spearman_correlation_of_the_parts():
    found = vitrail.explain(tiny("hf_vit"), MODELS["hf_vit"].inputs(), "consensus", 1, smooth=0.0)
    for parts, said in zip(found.layers.numpy(), found.provenance["disagreement"], strict=True):
        # A part whose scores are all the same agrees with none.
        pairs = [spearmanr(a, b)[0] if np.ptp(a) and np.ptp(b) else 0.0 for a, b in combinations(parts, 2)]
        assert said == pytest.approx(1 - np.mean(pairs), abs=1e-12)


def test_parts_that_say_the_same_do_not_disagree_and_one_part_never_does():
    parts, content = torch.rand(2, 1, 7, dtype=torch.float64), torch.ones(2, 7, dtype=torch.bool)
    same = torch.cat([parts, parts.sqrt(), parts**2], dim=1)
    assert_close(consensus.disagreement(same, content), torch.zeros(2, dtype=torch.float64))
    opposite = torch.cat([parts, -parts], dim=1)
    assert_close(consensus.disagreement(opposite, content), torch.full((2,), 2.0, dtype=torch.float64))
    assert consensus.disagreement(parts, content) is None


def test_what_is_not_content_takes_no_part_in_scaling_and_in_ranks():
    scores = torch.tensor([[9.0, 1.0, 3.0, 2.0, -7.0]], dtype=torch.float64)
    content = torch.tensor([[False, True, True, True, False]])
    assert_close(
        consensus.min_max_over(scores, content), torch.tensor([[0.0, 0.0, 1.0, 0.5, 0.0]], dtype=torch.float64)
    )
    signed = consensus.signed_unit(scores, content, 1.0)
    assert_close(signed, torch.tensor([[0.0, 1 / 3, 1.0, 2 / 3, 0.0]], dtype=torch.float64))
    both = torch.stack([scores, scores * torch.tensor([[1.0, 1, 1, 1, -1]])], dim=1)
    assert_close(consensus.disagreement(both, content), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("scale", consensus.SCALES.values())
def test_a_constant_part_gives_no_nan_and_agrees_with_none(scale):
    content = torch.ones(1, 5, dtype=torch.bool)
    flat, other = torch.zeros(1, 5, dtype=torch.float64), torch.rand(1, 5, dtype=torch.float64)
    parts = torch.stack([scale(flat, content, 0.5), scale(other, content, 0.5)], dim=1)
    assert bool(torch.isfinite(parts).all())
    assert_close(parts[:, 0], flat)
    assert_close(consensus.disagreement(parts, content), torch.ones(1, dtype=torch.float64))


def test_another_class_changes_the_map():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    one, other = (vitrail.explain(model, inputs, "consensus", c).scores for c in (0, 3))
    assert np.mean([spearmanr(a, b)[0] for a, b in zip(one, other, strict=True)]) < 0.6


def test_randomised_weights_destroy_it():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    *_, (_, copy) = metrics.randomised(model, seed=0)
    real, random = (vitrail.explain(m, inputs, "consensus", 0).scores for m in (model, copy))
    assert np.mean([spearmanr(a, b)[0] for a, b in zip(real, random, strict=True)]) < 0.5


class OneWord(nn.Module):
    """Attends to one word and answers by how much it saw of it; all other words are alike to it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 1, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)
        with torch.no_grad():
            self.embed.weight[:] = 0.3 * torch.randn(20, 8)
            self.embed.weight[:, 0] = -1.0
            self.embed.weight[7, 0] = 6.0
            attention = self.encoder.layers[0].self_attn
            attention.in_proj_weight[:] = 0.05 * attention.in_proj_weight
            attention.in_proj_weight[16:] = torch.eye(8)  # values are what they read
            attention.out_proj.weight[:] = torch.eye(8)
            self.head.weight[0], self.head.weight[1] = 0.0, 0.0
            self.head.weight[1, 0] = 2.0

    def forward(self, input_ids):
        return self.head(self.encoder(self.embed(input_ids))[:, 0])


@pytest.mark.parametrize("place", [2, 4, 5])
def test_the_word_that_decides_is_found(place):
    model = OneWord().double().eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    ids[0, place] = 7
    anatomy = vitrail.Anatomy(blocks="encoder.layers", readout="cls")
    for parts in ("gae+attn_lrp+le_grad", "attn_lrp+integrated_gradients", "blanked_lrp"):
        found = vitrail.explain(model, {"input_ids": ids}, "consensus", 1, anatomy=anatomy, parts=parts)
        assert int(found.scores.argmax()) == place


def test_a_model_that_a_part_does_not_apply_to_is_refused_by_the_parts_name():
    with pytest.raises(MethodError, match=r"its part attn_lrp does not.*cosine"):
        vitrail.explain(tiny("hf_clip"), MODELS["hf_clip"].inputs(), "consensus")
    assert vitrail.explain(tiny("hf_clip"), MODELS["hf_clip"].inputs(), "consensus", parts="gae").layers is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": "gae+attnlrp"}, "attn_lrp"),
        ({"parts": "gae+gae"}, "twice"),
        ({"parts": "half*gae"}, "a number above zero"),
        ({"parts": "-1*gae"}, "a number above zero"),
        ({"parts": "nan*gae"}, "a number above zero"),
        ({"power": 0.0}, "power must be above 0"),
        ({"power": float("nan")}, "power must be above 0"),
        ({"smooth": -1.0}, "smooth a finite number of at least 0"),
        ({"smooth": float("inf")}, "smooth a finite number of at least 0"),
        ({"negative": "flip"}, "drop"),
        ({"detail": "pixel"}, "pixels"),
        ({"calibration": "otto"}, "otsu"),
        ({"shift": -1}, "shift must be at least 0"),
        ({"radius": 0}, "at least 1"),
    ],
)
def test_options_that_name_nothing_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        consensus.build(**options)


def test_pixels_are_for_images():
    with pytest.raises(OptionError, match="for images"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "consensus", preset="fine")


def test_half_precision_is_explained_in_single():
    model = deepcopy(tiny("hf_vit")).to(torch.bfloat16)
    inputs = MODELS["hf_vit"].inputs(dtype=torch.bfloat16)
    found = vitrail.explain(model, inputs, "consensus", 1).scores
    assert found.dtype == torch.float32
    assert bool(torch.isfinite(found).all())


def test_a_callers_autocast_does_not_reach_the_smoothing():
    model, inputs = deepcopy(tiny("timm_vit")).float(), MODELS["timm_vit"].inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, found = (vitrail.explain(model, inputs, "consensus", 1, smooth=width) for width in (0.0, 0.4))
    expected = smoothed_grid(plain.layers.unflatten(2, plain.grid), 0.4).flatten(2)
    assert_close(found.layers, expected)


@pytest.mark.parametrize(
    ("name", "options", "forward", "backward"),
    [
        ("hf_vit", {}, 1, 3),
        ("hf_vit", {"preset": "fine"}, 5, 12),
        ("hf_bert", {}, 4, 3),
        ("hf_bert", {"preset": "spans"}, 1, 2),
    ],
)
def test_it_costs_the_passes_that_its_page_says(name, options, forward, backward, monkeypatch):
    """Samples that run through all blocks, and those that are differentiated, over the samples that are given."""
    model, inputs = tiny(name), MODELS[name].inputs()
    depth = model.config.num_hidden_layers
    block = type(next(m for n, m in model.named_modules() if n.endswith(("layer.0", "layers.0"))))
    ran, differentiated = [], []
    run, grad = block.forward, torch.autograd.grad

    def counted(self, states, *args, **more):
        ran.append(len(states))
        return run(self, states, *args, **more)

    def counting(outputs, inputs, *args, **more):
        found = grad(outputs, inputs, *args, **more)
        if [one.ndim for one in found] != [3] * depth:  # with respect to the outputs of all blocks: of the head alone
            differentiated.append(len(found[0]))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(block, "forward", counted)
        for _ in range(3):  # the first call measures the model's structure, and what its passes do to tokens
            ran.clear()
            vitrail.explain(model, inputs, "consensus", 1, **options)
    monkeypatch.setattr(torch.autograd, "grad", counting)
    vitrail.explain(model, inputs, "consensus", 1, **options)
    assert (sum(ran) / depth / 2, sum(differentiated) / 2) == (forward, backward)
