"""Models that cut the graph: what has no gradient is an error, and what is recomputed later changes nothing."""

from contextlib import nullcontext
from functools import cache, partial

import pytest
import torch
from applying import CHEAP
from tiny_models import MODELS
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import vitrail
from vitrail import targets
from vitrail.errors import CutGraphError, OptionError, SeamError, TargetError, VitrailError
from vitrail.methods import METHODS

IDS = torch.tensor([[1, 5, 9, 2, 4], [1, 7, 8, 4, 2]])
FORWARD = {"abs_lrp", "grad_eclip", "ifr", "flashtrace", "context_cite", "leave_one_out", "sentence_drop"}
TEXT = [name for name, entry in METHODS.items() if "text" in entry.inputs and name not in FORWARD]
DIFFERENTIATING = [name for name in TEXT if name not in {"rollout", "raw_attention"}]


def plainly(function, *args):
    return function(*args)


class Blocks(nn.Module):
    """An encoder that calls its layers in a way of its own."""

    def __init__(self, call=plainly, part="block"):
        super().__init__()
        torch.manual_seed(0)
        self.call, self.part = call, part
        self.embed = nn.Embedding(20, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(12, 3)
        self.double().eval()

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.encoder.layers:
            x = self.step(layer, x)
        return self.head(x[:, 0])

    def step(self, layer, x):
        if self.part == "block":
            return self.call(layer, x)
        if self.part == "function":
            return self.call(lambda y: layer(y), x)
        return self.call(lambda y: [layer(z) for z in [y]][0], x)  # noqa: RUF015


class Speaking(Blocks):
    """A language model: each token sees those before it, and the next word is predicted after each."""

    def __init__(self, call=plainly):
        super().__init__(call)
        self.head = nn.Linear(12, 20).double()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for layer in self.encoder.layers:
            x = self.call(layer, x, later)
        return self.head(x)


NOT_REENTRANT = partial(checkpoint, use_reentrant=False)
REENTRANT = partial(checkpoint, use_reentrant=True)


@pytest.mark.parametrize("method", [*TEXT, "auto"])
def test_checkpointed_blocks_are_explained_as_if_they_were_not(method):
    options = CHEAP.get(method, {})
    make, target = (Speaking, targets.continuation(3, 5)) if method == "soft_ablation" else (Blocks, 1)
    found, expected = (vitrail.explain(make(call), IDS, method, target, **options) for call in (NOT_REENTRANT, plainly))
    assert torch.equal(found.scores, expected.scores)
    assert bool(found.scores.any())


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "integrated_gradients", "feature_grad_cam"])
def test_a_checkpointed_function_is_explained_as_if_it_were_not(method):
    models, options = (Blocks(NOT_REENTRANT, part="function"), Blocks()), CHEAP.get(method, {})
    found, expected = (vitrail.explain(model, IDS, method, 1, **options).scores for model in models)
    assert torch.equal(found, expected)


class InsideBlock(nn.TransformerEncoderLayer):
    """Only the feed-forward part is checkpointed."""

    call = staticmethod(plainly)

    def _ff_block(self, x):
        return self.call(super()._ff_block, x)


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "lrp", "tokentm", "auto"])
def test_a_part_of_a_block_may_be_checkpointed(method):
    found = []
    for call in (NOT_REENTRANT, plainly):
        model = Blocks()
        for layer in model.encoder.layers:
            layer.__class__ = InsideBlock
            layer.call = call
        found.append(vitrail.explain(model, IDS, method, 1).scores)
    assert torch.equal(*found)


def test_no_saving_hook_is_left_behind():
    before = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: FBT003
    vitrail.explain(Blocks(NOT_REENTRANT), IDS, "attn_lrp", 1)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) == before  # noqa: FBT003


@pytest.mark.parametrize("method", [*DIFFERENTIATING, "auto"])
def test_reentrant_checkpointing_is_an_error_and_never_zeros(method):
    with pytest.raises(VitrailError, match="use_reentrant=True"):
        vitrail.explain(Blocks(REENTRANT), IDS, method, 1)


@pytest.mark.parametrize("method", ["rollout", "raw_attention"])
def test_a_readout_that_cannot_be_measured_is_an_error(method):
    with pytest.raises(VitrailError, match=r"use_reentrant|reentrant checkpointing"):
        vitrail.explain(Blocks(REENTRANT), IDS, method, 1)


def without_gradient(function, *args):
    with torch.no_grad():
        return function(*args)


def inferred(function, *args):
    with torch.inference_mode():
        out = function(*args)
    return out.clone()


CUTS = {"torch.no_grad": without_gradient, "torch.inference_mode": inferred}


@pytest.mark.parametrize("why", CUTS)
@pytest.mark.parametrize("method", ["gae", "attn_lrp", "attcat", "integrated_gradients", "auto"])
def test_attention_without_a_graph_is_an_error_that_says_why(why, method):
    with pytest.raises(SeamError, match=why):
        vitrail.explain(Blocks(CUTS[why]), IDS, method, 1)


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "attcat", "integrated_gradients", "auto"])
def test_eight_bit_kernels_have_no_gradient_and_are_refused(method):
    if not torch.backends.quantized.supported_engines[1:]:
        pytest.skip("this build has no 8-bit kernels")
    model = MODELS["hf_bert"].build().eval()
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(VitrailError, match="8-bit"):
        vitrail.explain(small, MODELS["hf_bert"].inputs(), method, 1)


def test_a_target_that_no_layer_reaches_is_an_error():
    class Detached(Blocks):
        def forward(self, ids):
            return super().forward(ids).detach() * self.head.bias.sum()

    for method in ("gae", "attn_lrp", "input_x_gradient"):
        with pytest.raises(TargetError, match="detach"):
            vitrail.explain(Detached(), IDS, method, 1)


def test_a_block_whose_result_is_not_used_takes_no_part():
    class Unused(Blocks):
        def step(self, layer, x):
            out = layer(x)
            return x if layer is self.encoder.layers[1] else out

    class Without(Blocks):
        def forward(self, ids):
            x = self.embed(ids)
            for index in (0, 2):
                x = self.encoder.layers[index](x)
            return self.head(x[:, 0])

    without = Without()
    without.encoder.layers = nn.ModuleList([without.encoder.layers[0], without.encoder.layers[2]])
    without.forward = lambda ids: Blocks.forward(without, ids)
    for method in ("gae", "attn_lrp", "attcat"):
        found, expected = (vitrail.explain(m, IDS, method, 1).scores for m in (Unused(), without))
        assert_close(found, expected, msg=method)


@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm", "attn_lrp"])
def test_a_last_block_that_is_not_read_takes_no_part(method):
    class Earlier(Blocks):
        def step(self, layer, x):
            out = layer(x)
            return x if layer is self.encoder.layers[-1] else out

    shorter = Blocks()
    shorter.encoder.layers = shorter.encoder.layers[:2]
    found, expected = (vitrail.explain(model, IDS, method, 1).scores for model in (Earlier(), shorter))
    assert_close(found, expected)


class Bare(nn.Module):
    """One attention, no list of blocks."""

    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(20, 12), nn.MultiheadAttention(12, 3, batch_first=True)
        self.head, self.pool = nn.Linear(12, 3), pool
        self.double()

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.attend(x, x, x)[0]
        return self.head(x[:, 0] if self.pool == "first" else x.mean(dim=1))


@pytest.mark.parametrize("method", ["gae", "rollout", "att_grads", "raw_attention"])
@pytest.mark.parametrize(("pool", "readout"), [("first", "cls"), ("mean", "mean_all")])
def test_an_anatomy_without_blocks_measures_where_the_answer_is_read(method, pool, readout):
    found, expected = (
        vitrail.explain(Bare(pool), IDS, method, 1, anatomy=anatomy).scores
        for anatomy in (vitrail.Anatomy(), vitrail.Anatomy(readout=readout))
    )
    assert_close(found, expected)
    assert bool(found.any())


# Several streams


class Captioning(nn.Module):
    """A picture that words look at."""

    def __init__(self, call=plainly, *, seeing=nullcontext, words=plainly):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"batch_first": True, "norm_first": True}
        self.call, self.seeing, self.words = call, seeing, words
        self.patches, self.embed = nn.Conv2d(3, 12, 8, 8), nn.Embedding(20, 12)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(12, 3, 16, **sizes) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(12, 3, 16, **sizes) for _ in range(2))
        self.head = nn.Linear(12, 3)
        self.double().eval()

    def forward(self, pixel_values, input_ids):
        with self.seeing():
            x = self.patches(pixel_values).flatten(2).transpose(1, 2)
            for layer in self.encoder:
                x = self.call(layer, x)
        y = self.words(self.embed, input_ids)
        for layer in self.decoder:
            y = self.call(layer, y, x)
        return self.head(y.mean(dim=1))


FEW_STEPS = {"integrated_gradients": {"steps": 2}}
AT_INPUTS = ("attn_lrp", "conservative_lrp", "input_x_gradient", "integrated_gradients")


def captioned():
    dice = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, 16, 24, generator=dice, dtype=torch.float64), "input_ids": IDS[:1]}


@cache
def of_captions(method):
    """What a method finds of the plain model."""
    return vitrail.explain(Captioning(), captioned(), method, 1, **FEW_STEPS.get(method, {}))


@pytest.mark.parametrize("method", [*AT_INPUTS, "gae"])
@pytest.mark.parametrize("words", [plainly, NOT_REENTRANT], ids=["words", "checkpointed_words"])
def test_checkpointed_streams_are_explained_as_if_they_were_not(method, words):
    """A plain CheckpointError once: rules, leaves and cuts are gone when a region is recomputed."""
    model, expected = Captioning(NOT_REENTRANT, words=words), of_captions(method).streams
    for _ in range(2):  # what is measured is remembered
        found = vitrail.explain(model, captioned(), method, 1, **FEW_STEPS.get(method, {})).streams
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name].scores, expected[name].scores) for name in expected)


@pytest.mark.parametrize("method", [*AT_INPUTS, "gae", "auto"])
@pytest.mark.parametrize(
    "options",
    [{"call": REENTRANT}, {"seeing": torch.no_grad}, {"words": REENTRANT}],
    ids=["reentrant", "no_grad", "reentrant_words"],
)
def test_a_stream_without_a_gradient_is_an_error_and_never_zeros(method, options):
    with pytest.raises(VitrailError):
        vitrail.explain(Captioning(**options), captioned(), method, 1)


def test_an_input_that_is_not_read_has_zeros():
    class Deaf(Captioning):
        def forward(self, pixel_values, input_ids):
            return super().forward(torch.ones_like(pixel_values), input_ids)

    found = vitrail.explain(Deaf(), captioned(), "input_x_gradient", 1).streams
    assert not bool(found["encoder"].scores.any())
    assert bool(found["decoder"].scores.any())


@pytest.mark.parametrize("method", AT_INPUTS)
def test_streams_are_read_at_the_level_that_their_options_say(method):
    options, found, model = FEW_STEPS.get(method, {}), of_captions(method), Captioning()
    levels = {name: one.options["level"] for name, one in found.streams.items()}
    assert levels == {"encoder": "pixels", "decoder": "inputs_embeds"}
    assert levels.keys() == of_captions("gae").streams.keys()
    for level in levels.values():
        same = vitrail.explain(model, captioned(), method, 1, level=level, **options)
        assert all(torch.equal(same.streams[name].scores, found.streams[name].scores) for name in levels)
    with pytest.raises(OptionError, match=r"level='embedding_output'.*several streams"):
        vitrail.explain(model, captioned(), method, 1, level="embedding_output", **options)


def cut_at(x, number):
    """Detach one sample of a batch by its number."""
    chosen = (torch.arange(len(x)) == number).view(-1, *[1] * (x.ndim - 1))
    return torch.where(chosen, x.detach(), x)


class CutByNumber(nn.Module):
    """A classifier that takes what one layer adds out of the graph, for one sample of the batch."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.number = nn.Embedding(12, 16), nn.Linear(16, 3), number
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3))

    def forward(self, input_ids):
        x = self.words(input_ids)
        for index, (norm, attention) in enumerate(zip(self.norms, self.attentions, strict=True)):
            h = norm(x)
            added = attention(h, h, h, need_weights=False)[0]
            x = x + (cut_at(added, self.number) if index == 1 else added)
        return self.head(x[:, 0])


@pytest.mark.parametrize("method", ["gae", "tokentm", "auto", "attn_lrp", "input_x_gradient", "integrated_gradients"])
def test_a_sample_that_is_cut_by_its_number_in_the_batch_is_refused(method):
    ids = torch.randint(12, (5, 6), generator=torch.Generator().manual_seed(1))
    model = CutByNumber(4).double().eval()
    vitrail.explain(model, ids[:4], method, 1)  # which fifth sample there is not
    for _ in range(2):
        with pytest.raises(CutGraphError):
            vitrail.explain(model, ids, method, 1)
    whole = vitrail.explain(CutByNumber(9).double().eval(), ids[:4], method, 1)
    assert_close(vitrail.explain(model, ids[:4], method, 1).scores, whole.scores)
