"""LibraGrad: its equations in plain torch, completeness, and what it says of models that it does not cover."""

import copy
import gc

import any_outcomes
import pytest
import stream_models
import torch
import torch.nn.functional as F
from any_models import TABLE
from stream_models import ENCODER_DECODERS, LANGUAGE_MODELS
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import MethodError, OptionError
from vitrail.methods.libra_grad import MAPS, ratio

COSINE = ("hf_clip", "hf_clip_eager", "hf_clip_text")
NAMES = [name for name in MODELS if name not in COSINE]
SINGLE = ("hf_llama", "hf_llama_classifier", "hf_llama_eager", "hf_qwen3")


def norm(x, layer):
    """A layer norm whose deviation is a constant."""
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt().detach()
    return (x - x.mean(dim=-1, keepdim=True)) / deviation * layer.weight


def constant_times(value, x):
    return x * torch.where(x == 0, 0.5, value / x).detach()


def by_hand(model, ids, classes, activation=F.relu):
    """The three maps of an `OwnClassifier`, with a leaf for every bias at every token."""
    leaves, states = [], []

    def bias(x, b):
        leaves.append(b.detach().expand_as(x).clone().requires_grad_())
        return x + leaves[-1]

    def attend(layer, x):
        part, heads = layer.self_attn, layer.self_attn.num_heads
        q, k, v = (
            bias(x @ w.T, b).unflatten(-1, (heads, -1)).transpose(1, 2)
            for w, b in zip(part.in_proj_weight.chunk(3), part.in_proj_bias.chunk(3), strict=True)
        )
        probs = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1).detach()
        return bias((probs @ v).transpose(1, 2).flatten(2) @ part.out_proj.weight.T, part.out_proj.bias)

    def feed(layer, x):
        inner = bias(x @ layer.linear1.weight.T, layer.linear1.bias)
        return bias(constant_times(activation(inner), inner) @ layer.linear2.weight.T, layer.linear2.bias)

    x = (model.embed(ids) + model.places[: ids.shape[1]]).detach().requires_grad_()
    for layer in model.encoder.layers:
        states.append(x)
        if layer.norm_first:
            x = x + attend(layer, bias(norm(x, layer.norm1), layer.norm1.bias))
            x = x + feed(layer, bias(norm(x, layer.norm2), layer.norm2.bias))
        else:
            x = bias(norm(x + attend(layer, x), layer.norm1), layer.norm1.bias)
            x = bias(norm(x + feed(layer, x), layer.norm2), layer.norm2.bias)
    states.append(x)
    logits = model.head(x.mean(dim=1))
    scalar = logits[torch.arange(len(ids)), torch.tensor(classes)].sum()
    grads = torch.autograd.grad(scalar, [*states, *leaves], allow_unused=True)
    each = [(x * g).sum(dim=2).detach() for x, g in zip([*states, *leaves], grads, strict=True) if g is not None]
    layers = torch.stack(each[: len(states)])
    return {"input": layers[0], "layers": layers.sum(dim=0), "full": _added(each)}, layers


def _added(each):
    """Every bias at the tokens it was added to."""
    return torch.stack(each).sum(dim=0)


OWN = ("own_pre_norm", "own_post_norm", "own_time_first")


@pytest.mark.parametrize("batch", [2, 9])  # nine texts of nine tokens: shapes do not tell samples from tokens
@pytest.mark.parametrize("name", OWN)
def test_every_map_is_what_plain_torch_gives_with_a_leaf_for_every_bias(name, batch):
    model, ids, classes = tiny(name), MODELS[name].inputs(batch), [0, 2, 4, 1, 3, 2, 0, 1, 4][:batch]
    expected, layers = by_hand(model, ids, classes)
    for maps in MAPS:
        assert_close(vitrail.explain(model, ids, "libra_grad", classes, maps=maps).scores, expected[maps])
    for start in (1, 3):
        found = vitrail.explain(model, ids, "libra_grad", classes, maps="layers", start_layer=start)
        assert_close(found.scores, layers[start:].sum(dim=0))
        found = vitrail.explain(model, ids, "libra_grad", classes, start_layer=start)
        assert_close(found.scores, expected["full"] - layers[:start].sum(dim=0))


@pytest.mark.parametrize("name", NAMES)
def test_one_layer_and_the_biases_above_it_add_up_to_the_logit_without_the_bias_of_the_head(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    for maps in MAPS:
        found = vitrail.explain(model, inputs, "libra_grad", [0, 2], maps=maps)
        # Hugging Face computes norms and rotary tables of some models in float32.
        assert max(map(abs, found.provenance["residual"])) < (1e-6 if name in SINGLE else 1e-13)
        assert "assumed" not in found.provenance


def test_without_biases_the_scores_at_the_input_add_up_to_the_logit():
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    logits = model(**inputs).logits[:, -1, [4, 7]].diagonal()
    found = vitrail.explain(model, inputs, "libra_grad", [4, 7], maps="input")
    assert_close(found.scores.sum(dim=1), logits.detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("target", [targets.difference(0, 2), targets.probability(1), lambda x: x[:, 0] ** 2])
def test_of_other_scalars_the_part_that_is_linear_in_the_logits_is_complete(target):
    found = vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "libra_grad", target)
    assert max(map(abs, found.provenance["residual"])) < 1e-13


def test_an_answer_is_complete_too():
    model, inputs = tiny("hf_gpt2"), MODELS["hf_gpt2"].inputs()
    found = vitrail.explain(model, inputs, "libra_grad", targets.continuation(5))
    assert max(map(abs, found.provenance["residual"])) < 1e-12


@pytest.mark.parametrize("maps", MAPS)
def test_tokens_after_the_one_that_is_read_get_exactly_nothing(maps):
    model, inputs = tiny("hf_gpt2"), MODELS["hf_gpt2"].inputs()
    scores = vitrail.explain(model, inputs, "libra_grad", targets.logit(5, position=4), maps=maps).scores
    assert bool((scores[:, 5:] == 0).all())
    assert bool((scores[:, :5] != 0).all())


def test_an_expert_gives_its_biases_to_the_tokens_that_were_sent_to_it():
    model, inputs = any_outcomes.prepared(TABLE["decoder/gpt_oss"])
    whole = vitrail.explain(model, inputs, "libra_grad", [3, 5])
    assert max(map(abs, whole.provenance["residual"])) < 1e-6
    for i, target in enumerate((3, 5)):
        one = vitrail.explain(model, {name: x[i : i + 1] for name, x in inputs.items()}, "libra_grad", target)
        assert_close(one.scores[0], whole.scores[i], atol=1e-6, rtol=0)
    before = vitrail.explain(model, inputs, "libra_grad", targets.logit(3, position=4))
    assert bool((before.scores[:, 5:] == 0).all())


def test_a_bias_whose_tokens_are_not_known_is_refused_and_layers_alone_are_not():
    model, inputs = any_outcomes.prepared(TABLE["decoder/jetmoe"])
    with pytest.raises(MethodError, match=r"self_attention.*maps='layers'"):
        vitrail.explain(model, inputs, "libra_grad", 3)
    found = vitrail.explain(model, inputs, "libra_grad", 3, maps="layers")
    assert any("not measured" in said for said in found.provenance["assumed"])


def test_an_activation_is_its_input_times_a_constant():
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    assert_close(ratio(x.relu(), x), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert_close(ratio(x.sigmoid(), x, 0.5)[[0, 2]], ((x.sigmoid() - 0.5) / x)[[0, 2]])


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(60, 24), nn.Linear(24, 5)
        self.blocks = nn.ModuleList([GatedBlock(), GatedBlock()])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


class GatedBlock(nn.Module):
    """Attention, and a feed-forward layer whose gate is a sigmoid; its last function is not zero at zero."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(24, 3, batch_first=True)
        self.gate, self.up, self.down = nn.Linear(24, 16), nn.Linear(24, 16), nn.Linear(16, 24)

    def forward(self, x):
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return x + self.down(F.softplus(self.gate(x).sigmoid() * self.up(x)))


def test_a_function_that_is_not_zero_at_zero_is_this_value_and_its_input_times_a_constant():
    model, ids = Blocks().double().eval(), torch.randint(0, 60, (2, 7))
    found = vitrail.explain(model, ids, "libra_grad", [0, 3])
    assert max(map(abs, found.provenance["residual"])) < 1e-13
    assert "assumed" not in found.provenance


@pytest.mark.parametrize("case", [ENCODER_DECODERS["t5_gated"], LANGUAGE_MODELS["llava"]], ids=["t5", "llava"])
def test_on_several_streams_the_gradient_is_read_at_the_inputs(case):
    model, inputs = stream_models.prepared(case)
    for method, options in (("libra_grad", {"maps": "input"}), ("gim", {"baseline": "zero"})):
        found = vitrail.explain(model, inputs, method, case.target)
        assert {option: found.options[option] for option in options} == options
        assert len(found.streams) == 2
        named = vitrail.explain(model, inputs, method, case.target, **options).streams
        for stream, one in found.streams.items():
            assert bool((one.scores != 0).any())
            assert_close(one.scores, named[stream].scores)
    with pytest.raises(OptionError, match="maps='input'"):
        vitrail.explain(model, inputs, "libra_grad", case.target, maps="full")
    with pytest.raises(OptionError, match="baseline='zero'"):
        vitrail.explain(model, inputs, "gim", case.target, baseline="mean")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maps": "all"}, "full"), ({"start_layer": 4}, "0 to 3"), ({"start_layer": -1}, "0 to 3"),
        ({"maps": "input", "start_layer": 1}, "sums over no layers"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, said):
    with pytest.raises(OptionError, match=said):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "libra_grad", 1, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_precisions_are_close(dtype):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    exact = vitrail.explain(model, inputs, "libra_grad", 1).scores
    found = vitrail.explain(copy.deepcopy(model).to(dtype), inputs, "libra_grad", 1).scores.double()
    assert float((found - exact).abs().max() / exact.abs().max()) < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("streams", [False, True], ids=["one stream", "streams"])
def test_nothing_of_the_graph_is_held_after_a_call(streams):
    if streams:
        model, inputs = stream_models.prepared(ENCODER_DECODERS["bart"])
    else:
        model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    target = ENCODER_DECODERS["bart"].target if streams else 1

    def held():
        for method in ("libra_grad", "gim"):
            vitrail.explain(model, inputs, method, target)
        gc.collect()
        return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())

    held()
    before = held()
    assert [held(), held()] == [before, before]
