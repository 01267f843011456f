"""What attention and the feed-forward part add to the residual stream, measured whatever stores the weights."""

from dataclasses import replace

import pytest
import torch
from layers import B, D, H, T, layer, random, run, stack
from tiny_models import DECODER, MODELS, tiny
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm
from torch.testing import assert_close

import vitrail
from vitrail.capture.structure import updates
from vitrail.capture.structure.projections import at_zero, matrix
from vitrail.errors import MissingTensorError, VitrailError
from vitrail.methods import bi, tokentm

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[1, 9, 12, 33, 7, 41, 2], [1, 5, 6, 7, 8, 50, 2]])
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class Int8(nn.Module):
    """A linear layer that stores integers and computes with what they stand for."""

    def __init__(self, old):
        super().__init__()
        scale = old.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.weight = nn.Parameter((old.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.bias = old.bias

    @property
    def dequantised(self):
        return self.weight.to(self.scale.dtype) * self.scale

    def forward(self, x):
        return F.linear(x, self.dequantised, self.bias)


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, as LoRA has it, that has a bias of its own."""

    def __init__(self, old):
        super().__init__()
        self.base_layer, self.in_features = old, old.in_features
        self.down, self.up = nn.Linear(old.in_features, 2, bias=False), nn.Linear(2, old.out_features)
        for x in (self.down.weight, self.up.weight, self.up.bias):
            nn.init.normal_(x)

    @property
    def weight(self):
        return self.base_layer.weight

    @property
    def bias(self):
        return self.base_layer.bias

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


def plain(width_in, width_out, weight, bias):
    made = nn.Linear(width_in, width_out)
    made.weight, made.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
    return made


def as_int8(old):
    made = Int8(old)
    return made, plain(old.in_features, old.out_features, made.dequantised, old.bias)


def as_adapted(old):
    made = Adapted(old).to(old.weight)
    weight = old.weight + made.up.weight @ made.down.weight
    return made, plain(old.in_features, old.out_features, weight, old.bias + made.up.bias)


def as_weight_norm(old):
    made = parametrizations.weight_norm(plain(old.in_features, old.out_features, old.weight, old.bias))
    with torch.no_grad():
        made.parametrizations.weight.original0.mul_(3)
    return made, plain(old.in_features, old.out_features, made.weight, old.bias)


def as_old_weight_norm(old):
    made = weight_norm(plain(old.in_features, old.out_features, old.weight, old.bias))
    with torch.no_grad():
        made.weight_g.mul_(3)  # what is stored as `weight` is stale until the next pass
    return made, plain(old.in_features, old.out_features, 3 * old.weight, old.bias)


def as_spectral_norm(old):
    made = spectral_norm(plain(old.in_features, old.out_features, old.weight, old.bias)).eval()
    made(torch.zeros(1, old.in_features, dtype=old.weight.dtype))
    return made, plain(old.in_features, old.out_features, made.weight, old.bias)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def as_parametrized(old):
    made = plain(old.in_features, old.out_features, old.weight, old.bias)
    parametrize.register_parametrization(made, "weight", Doubled())
    return made, plain(old.in_features, old.out_features, 2 * old.weight, old.bias)


def as_conv1d(old):
    made = transformers.pytorch_utils.Conv1D(old.out_features, old.in_features)
    made.weight, made.bias = nn.Parameter(old.weight.detach().T.clone()), old.bias
    return made, old


FORMS = (
    as_int8, as_adapted, as_weight_norm, as_old_weight_norm, as_spectral_norm, as_parametrized, as_conv1d,
)  # fmt: skip


def swap(model, form, which):
    """The model with some of its projections in another form, and the same model with plain layers that do the same."""
    other = MODELS["hf_bert"].build()
    other.load_state_dict(model.state_dict())
    other = other.to(next(model.parameters())).eval()
    for one, two in zip(model.bert.encoder.layer, other.bert.encoder.layer, strict=True):
        parts = (one.attention.output, two.attention.output, "dense") if which == "output" else (
            one.attention.self, two.attention.self, "value")  # fmt: skip
        new, same = form(getattr(parts[0], parts[2]))
        setattr(parts[0], parts[2], new)
        setattr(parts[1], parts[2], same)
    return model.eval(), other.eval()


def bert():
    torch.manual_seed(2)
    return MODELS["hf_bert"].build().double().eval()


@pytest.mark.parametrize("form", FORMS)
def test_the_matrix_of_a_module_is_what_it_does(form):
    torch.manual_seed(0)
    old = nn.Linear(5, 4).double()
    made, same = form(old)
    made(torch.zeros(1, 5).double())  # the pass that comes before
    weight, bias = matrix(made, 5, torch.zeros(1, dtype=torch.float64))
    assert_close(weight, same.weight.detach())
    assert_close(bias, same.bias.detach())
    assert_close(at_zero(made, 5, torch.zeros(1, dtype=torch.float64)), same.bias.detach())


def test_a_weight_of_a_tensor_class_of_its_own_is_called_also_where_nobody_intercepts():
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32))
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with torch._C.DisableTorchFunction():
        weight, bias = matrix(model[0], 64, torch.zeros(1))
    assert_close(weight, model[0].weight.dequantize().detach())
    assert_close(bias, model[0].bias.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_a_large_bias_hides_no_weight(dtype):
    torch.manual_seed(0)
    old = nn.Linear(6, 5)
    nn.init.constant_(old.bias, 3.0)
    half = Adapted(old).to(dtype)
    weight, _ = matrix(half, 6, torch.zeros(1))
    wanted = half.weight.float() + half.up.weight.float() @ half.down.weight.float()
    off = (weight - wanted).abs().max() / wanted.abs().max()
    assert float(off) < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["tokentm", "bi_token"])
def test_a_projection_counts_by_what_it_does_not_by_what_it_stores(form, method):
    model, same = swap(bert(), form, "output")
    options = {"steps": 2, "start_layer": 0} if method == "bi_token" else {}
    found = vitrail.explain(model, INPUTS, method, 1, **options)
    expected = vitrail.explain(same, INPUTS, method, 1, **options)
    assert_close(found.scores, expected.scores, atol=1e-12, rtol=1e-7)
    if method == "tokentm":
        assert_close(found.layers, expected.layers, atol=1e-12, rtol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_the_bias_of_values_counts_by_what_the_module_adds(form):
    model, same = swap(bert(), form, "value")
    found = vitrail.explain(model, INPUTS, "tokentm", 1, value_bias=False).layers
    expected = vitrail.explain(same, INPUTS, "tokentm", 1, value_bias=False).layers
    assert_close(found, expected, atol=1e-12, rtol=1e-7)


TARGETS = {
    "hf_gpt2": ["c_attn", "c_proj"],
    "hf_llama": ["q_proj", "v_proj", "o_proj"],
    "hf_distilbert": ["v_lin", "out_lin"],
}


@pytest.mark.parametrize("name", ["hf_bert", "hf_vit", "hf_gpt2", "hf_llama", "hf_distilbert"])
def test_adapters_of_peft_count_as_if_merged(name):
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    targets = TARGETS.get(name, ["query", "value", "dense", "q_proj", "v_proj", "o_proj"])
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    model = peft.get_peft_model(MODELS[name].build(), config).double().eval()
    inputs = MODELS[name].inputs()
    options = [{}, {"value_bias": False}]
    found = [vitrail.explain(model, inputs, "tokentm", 1, **some) for some in options]
    merged = model.merge_and_unload()
    for some, one in zip(options, found, strict=True):
        expected = vitrail.explain(merged, inputs, "tokentm", 1, **some)
        assert_close(one.layers, expected.layers, atol=1e-9, rtol=1e-5)
        assert_close(one.scores, expected.scores, atol=1e-9, rtol=1e-5)


def test_a_hook_that_changes_what_the_projection_gives_is_refused_where_it_bends_it():
    model = bert()
    last = model.bert.encoder.layer[-1].attention.output.dense
    last.register_forward_hook(lambda module, args, out: out.tanh())
    with pytest.raises(MissingTensorError, match=r"'output_weight' of attention layer 2, .* is not affine, or hooks"):
        vitrail.explain(model, INPUTS, "tokentm", 1)


def test_hooks_of_the_user_see_no_probe():
    model, seen = bert(), []
    for one in model.bert.encoder.layer:
        one.attention.output.dense = as_adapted(one.attention.output.dense)[0]
        one.attention.output.dense.register_forward_hook(lambda module, args, out: seen.append(args[0].shape))
    model(**INPUTS)
    shapes = set(seen)
    vitrail.explain(model, INPUTS, "tokentm", 1)
    assert set(seen) == shapes


def decoder(name, **more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**DECODER, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


AFTER = vitrail.Anatomy(
    blocks="model.layers", output="self_attn.o_proj", attention_norm="input_layernorm",
    ffn_norm="pre_feedforward_layernorm", ffn_input="mlp", ffn_output="mlp", readout="last", causal=True,
)  # fmt: skip
PLAIN = replace(AFTER, ffn_norm="post_attention_layernorm")
POST = replace(AFTER, attention_norm=None, ffn_norm=None)
POSTED = {
    "Gemma2": (AFTER, {"head_dim": 8}),
    "Gemma3Text": (AFTER, {"head_dim": 8}),
    "Olmo2": (POST, {}),
    "Glm4": (replace(AFTER, ffn_norm="post_attention_layernorm"), {"head_dim": 8}),
    "Granite": (PLAIN, {"residual_multiplier": 0.22}),
    "Llama": (PLAIN, {}),
    "Cohere": (replace(PLAIN, ffn_norm="input_layernorm"), {}),
    "Phi": (replace(PLAIN, ffn_norm="input_layernorm", output="self_attn.dense"), {}),
}


def build(name, options):
    made = "Gemma3" if name == "Gemma3Text" else name
    if name != "Gemma3Text":
        return decoder(made, **options)
    torch.manual_seed(1)
    model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**{**DECODER, **options})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("name", POSTED)
def test_heads_outputs_become_what_attention_adds_whatever_stands_between(name):
    """added_i = s_i * scale * W sum_j A_ij v_j, against the model with the attention of one block at zero."""
    anatomy, options = POSTED[name]
    model = build(name, options)
    layers = vitrail.record(model, INPUTS, 5, anatomy=anatomy).layers
    for index, one in enumerate(layers):
        heads = (one.probs @ one.values).transpose(1, 2).flatten(2)
        added = heads @ one.output_weight.T.double()
        added = added if one.output_rows is None else added * one.output_rows[:, :, None]
        added = added if one.attention_scale is None else added * one.attention_scale
        bias = model.model.layers[index].self_attn.dense.bias.detach() if name == "Phi" else 0.0  # takes no part
        assert_close(added + bias, actually_added(model, index), atol=1e-5, rtol=1e-4)  # norms compute in float32


def actually_added(model, index):
    """The stream in the middle of a block less the stream that enters it: with the feed-forward part at zero."""
    block, seen = model.model.layers[index], {}
    entering = block.register_forward_pre_hook(lambda m, args, kwargs: seen.update(x=args[0]), with_kwargs=True)
    silenced = block.mlp.register_forward_hook(lambda m, args, out: torch.zeros_like(out))
    leaving = block.register_forward_hook(lambda m, args, out: seen.update(y=out if torch.is_tensor(out) else out[0]))
    with torch.no_grad():
        model(**INPUTS)
    for handle in (entering, silenced, leaving):
        handle.remove()
    return seen["y"] - seen["x"]


@pytest.mark.parametrize("name", POSTED)
def test_the_feed_forward_part_counts_as_it_is_added(name):
    anatomy, options = POSTED[name]
    model = build(name, options)
    for index, one in enumerate(vitrail.record(model, INPUTS, 5, anatomy=anatomy).layers):
        added = one.state("ffn_added") * (1 if one.ffn_scale is None else one.ffn_scale)
        assert_close(
            one.stream.leaving - added, one.stream.entering + actually_added(model, index), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("name", POSTED)
def test_what_is_read_while_the_pass_runs_is_what_is_read_after_it(name):
    anatomy, options = POSTED[name]
    model = build(name, options)
    found = vitrail.explain(model, INPUTS, "tokentm", vitrail.targets.logit(5), anatomy=anatomy)
    layers = vitrail.record(model, INPUTS, 5, anatomy=anatomy).layers
    assert_close(found.layers, run(tokentm.build(), layers).layers, atol=1e-9, rtol=1e-6)


def test_a_norm_after_the_projection_changes_the_weights_of_tokens():
    """Gemma 2: without it, vectors count as many times too long as the norm makes them shorter."""
    anatomy, options = POSTED["Gemma2"]
    model = build("Gemma2", options)
    for one in vitrail.record(model, INPUTS, 5, anatomy=anatomy).layers:
        change = tokentm.attention_change(one, "entering", bias=True, scale=True)
        raw = model.model.layers[one.index].self_attn.o_proj.weight
        without = tokentm.attention_change(replace(one, output_weight=raw), "entering", bias=True, scale=True)
        ratio = without.length / (change.length * one.output_rows[:, None])
        assert float(ratio.mean()) > 2


def test_a_norm_named_as_the_wrong_part_is_refused():
    """As in Llama, where `post_attention_layernorm` is the feed-forward part's own."""
    model = build("Gemma2", {"head_dim": 8})
    with pytest.raises(MissingTensorError, match=r"'ffn_added' of attention layer .*not what"):
        vitrail.explain(model, INPUTS, "tokentm", 5, anatomy=PLAIN)


def gated_rows(layers):
    """Eqs. 13 to 16 with a factor for each row of the map, every transformed vector formed."""
    rows = []
    for b in range(B):
        contribution = torch.diag(layers[0].stream.entering[b].norm(dim=1))
        for one in layers:
            update = torch.eye(T, dtype=torch.float64)
            for h in range(H):
                weight = one.output_weight[:, h * D : (h + 1) * D]
                for i in range(T):
                    new = [one.output_rows[b, i] * weight @ one.value[b, h, j] for j in range(T)]
                    old = one.stream.entering[b]
                    cosines = torch.stack([F.cosine_similarity(x, y, dim=0) for x, y in zip(old, new, strict=True)])
                    shares = cosines.softmax(dim=0)
                    for j in range(T):
                        ratio = new[j].norm() / old[j].norm()
                        gain = one.probs_grad[b, h, i, j].clamp(min=0) * one.probs[b, h, i, j]
                        update[i, j] += gain * ratio * shares[j] / H
            contribution = update @ contribution
        rows.append(contribution[0])
    return torch.stack(rows)


def with_rows(layers):
    return [replace(one, output_rows=random(B, T).abs() + 0.1) for one in layers]


def test_tokentm_scales_the_rows_of_the_map_by_the_norm():
    layers = with_rows(stack())
    assert_close(run(tokentm.build(ffn=False), layers).scores, gated_rows(layers))


def test_the_weights_shown_are_those_of_a_token_at_its_own_place():
    (one,) = with_rows([layer()])
    shown = run(tokentm.build(), [one]).layers[:, 0]
    bare = run(tokentm.build(), [replace(one, output_rows=None)]).layers[:, 0]
    assert_close(shown, bare * one.output_rows)


def test_bi_scales_the_rows_of_the_map_by_the_norm():
    (one,) = with_rows([layer()])
    rows = random(B, 2, T)
    found = bi.token_step(rows, one)
    for b in range(B):
        mixing = one.output_rows[b][:, None] * one.probs[b].mean(dim=0) * bi.token_growth(one)[b]
        assert_close(found[b], rows[b] + rows[b] @ mixing)


class Between(nn.Module):
    """A pre-norm block with something between the output projection and the stream."""

    def __init__(self, between, before=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.ffn = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))
        self.between, self.before = between, before

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.between(self.out(heads if self.before is None else self.before(heads)))
        return x + self.ffn(self.norm2(x))


class Small(nn.Module):
    def __init__(self, make):
        super().__init__()
        torch.manual_seed(6)
        self.embed = nn.Embedding(60, 12)
        self.blocks = nn.ModuleList(Between(*make()) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(12) + 0.2)

    def forward(self, x):
        return x * self.gamma


class LayerScale(Scale):
    pass


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        return torch.tanh(self.alpha) * x


def moved(norm):
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.3, 1.5)
    return norm


OWN = vitrail.Anatomy(
    blocks="blocks", output="out", value_bias="qkv.bias", attention_norm="norm1", ffn_norm="norm2", ffn_input="ffn",
    ffn_output="ffn", readout="cls", prefix=1,
)  # fmt: skip
KNOWN = {
    "nothing": lambda: (nn.Identity(),),
    "dropout": lambda: (nn.Dropout(0.3),),
    "layer norm": lambda: (moved(nn.LayerNorm(12)),),
    "layer norm without weights": lambda: (nn.LayerNorm(12, elementwise_affine=False),),
    "rms norm": lambda: (moved(nn.RMSNorm(12, eps=1e-3)),),
    "layer scale": lambda: (LayerScale(),),
    "a scale of another name": lambda: (Scale(),),
    "a gate": lambda: (Gate(),),
    "norm, then scale": lambda: (nn.Sequential(moved(nn.LayerNorm(12)), LayerScale()),),
    "a number": lambda: (Times(),),
}


class Times(nn.Module):
    def forward(self, x):
        return 0.3 * x


@pytest.mark.parametrize("name", KNOWN)
def test_what_stands_between_projection_and_stream_is_measured(name):
    model = Small(KNOWN[name]).double().eval()
    for one in vitrail.record(model, IDS, 1, anatomy=OWN).layers:
        assert one.missing == {}
        heads = (one.probs @ one.values).transpose(1, 2).flatten(2)
        added = heads @ one.output_weight.T
        added = added if one.output_rows is None else added * one.output_rows[:, :, None]
        added = added if one.attention_scale is None else added * one.attention_scale
        actual = one.stream.ffn_entering - one.stream.entering
        block = model.blocks[one.index]
        with torch.no_grad():  # the projection's bias takes no part
            out = block.out(heads)
            both = [block.between(out), block.between(out - block.out.bias)]
        assert_close(both[0], actual, atol=1e-10, rtol=1e-8)
        if one.output_rows is None:
            assert_close(added, both[1], atol=1e-9, rtol=1e-7)
        else:  # with its statistics fixed a norm is affine: the bias adds the same vector, scaled as the row is
            shift = getattr(block.between, "bias", None) if "scale" not in name else block.between[0].bias
            shift = torch.zeros(12).double() if shift is None else shift
            shift = shift if "scale" not in name else shift * block.between[1].gamma
            rest = (actual - shift - added) / one.output_rows[:, :, None]
            assert_close(rest, rest[:1, :1].expand_as(rest), atol=1e-9, rtol=1e-7)
    assert vitrail.explain(model, IDS, "tokentm", 1, anatomy=OWN).scores.isfinite().all()


def test_blocks_that_share_modules_are_measured_apart():
    from copy import deepcopy

    apart = Small(KNOWN["layer norm"]).double().eval()
    shared = deepcopy(apart)
    for name in ("out", "ffn", "between"):
        setattr(apart.blocks[1], name, deepcopy(getattr(apart.blocks[0], name)))
        setattr(shared.blocks[1], name, getattr(shared.blocks[0], name))
    for one, two in zip(*(vitrail.record(m, IDS, 1, anatomy=OWN).layers for m in (apart, shared)), strict=True):
        assert_close(one.output_rows, two.output_rows)
        assert_close(one.output_weight, two.output_weight)
        assert_close(one.stream.ffn_added, two.stream.ffn_added)


class Shuffled(nn.Module):
    def forward(self, x):
        return x.flip(-1)


class Bent(nn.Module):
    def forward(self, x):
        return F.gelu(x)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 12)

    def forward(self, x):
        return x * torch.sigmoid(self.gate(x))


UNKNOWN = {
    "a bend": (lambda: (Bent(),), "not what Linear gave"),
    "channels moved": (lambda: (Shuffled(),), "not what Linear gave"),
    "a gate by content": (lambda: (Gated(),), "not what Linear gave"),
    "heads in another order": (lambda: (nn.Identity(), Shuffled()), "between the heads' outputs"),
    "a norm of the heads": (lambda: (nn.Identity(), nn.LayerNorm(12)), "between the heads' outputs"),
    "a gate of the heads": (lambda: (nn.Identity(), Gated()), "between the heads' outputs"),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("method", ["tokentm", "bi_token"])
def test_what_is_neither_norm_nor_scale_is_refused_by_name(name, method):
    make, why = UNKNOWN[name]
    model = Small(make).double().eval()
    options = {"steps": 2, "start_layer": 0} if method == "bi_token" else {}
    with pytest.raises(MissingTensorError, match=why):
        vitrail.explain(model, IDS, method, 1, anatomy=OWN, **options)
    assert vitrail.explain(model, IDS, "gae", 1, anatomy=OWN).scores.isfinite().all()


def opt(**more):
    torch.manual_seed(1)
    config = transformers.OPTConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, ffn_dim=40, pad_token_id=0,
        max_position_embeddings=20, word_embed_proj_dim=24, **more,
    )  # fmt: skip
    model = transformers.OPTForCausalLM(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


OPT = vitrail.Anatomy(
    blocks="model.decoder.layers", output="self_attn.out_proj", value_bias="self_attn.v_proj.bias",
    attention_norm="self_attn_layer_norm", ffn_norm="final_layer_norm", ffn_input="fc1", ffn_output="fc2",
    readout="last", causal=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "anatomy"),
    [(True, OPT), (False, replace(OPT, attention_norm=None, ffn_norm=None))],
)
@pytest.mark.parametrize("embedding", ["stream", "normed"])
def test_tokens_side_by_side_are_told_apart(before, anatomy, embedding):
    """OPT's feed-forward part works on [b * t, d]."""
    model = opt(do_layer_norm_before=before)
    layers = vitrail.record(model, INPUTS, 5, anatomy=anatomy).layers
    for one in layers:
        assert one.stream.ffn_added.shape == one.stream.entering.shape
        if before:
            assert_close(one.stream.ffn_entering + one.stream.ffn_added, one.stream.leaving)
    both = vitrail.explain(model, INPUTS, "tokentm", 5, anatomy=anatomy, embedding=embedding).scores
    for i in range(2):
        alone = {name: x[i : i + 1] for name, x in INPUTS.items()}
        one = vitrail.explain(model, alone, "tokentm", 5, anatomy=anatomy, embedding=embedding).scores
        assert_close(both[i : i + 1], one, atol=1e-12, rtol=1e-7)


def test_packed_tokens_are_refused():
    from vitrail.capture.recording.layers import stream_around
    from vitrail.errors import SeamError

    with pytest.raises(SeamError, match="packed side by side"):
        stream_around(None, {"entering": random(2, 5, 3), "ffn_added": random(9, 3)}, {})


@pytest.mark.parametrize("name", ["hf_bert", "timm_vit", "hf_dinov2", "own_post_norm", "own_pre_norm"])
def test_in_families_that_are_known_nothing_is_missing(name):
    for one in vitrail.record(tiny(name), MODELS[name].inputs()).layers:
        assert one.missing == {}
        assert one.output_weight is not None


class Number(nn.Module):
    def __init__(self):
        super().__init__()
        self.number, self.gate = 1.0, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.number * self.gate * x


def change_number(block):
    block.between.number = 0.3


def change_gate(block):
    with torch.no_grad():
        block.between.gate.fill_(0.3)


@pytest.mark.parametrize("change", [change_number, change_gate])
def test_what_is_added_as_it_is_is_compared_once_until_anything_changes(change, monkeypatch):
    model, compared = Small(lambda: (Number(),)).double().eval(), []
    alike = updates.are_alike
    monkeypatch.setattr(updates, "are_alike", lambda *args: (compared.append(1), alike(*args))[1])
    first = vitrail.explain(model, IDS, "tokentm", 1, anatomy=OWN).scores
    assert compared
    compared.clear()
    assert_close(vitrail.explain(model, IDS, "tokentm", 1, anatomy=OWN).scores, first)
    assert not compared
    change(model.blocks[0])
    later = vitrail.explain(model, IDS, "tokentm", 1, anatomy=OWN).scores
    assert compared
    fresh = Small(lambda: (Number(),)).double().eval()
    change(fresh.blocks[0])
    assert_close(later, vitrail.explain(fresh, IDS, "tokentm", 1, anatomy=OWN).scores)


@pytest.mark.parametrize(("name", "scales"), [("hf_dinov2", "layer_scale{}.lambda1"), ("timm_deit3", "ls{}.gamma")])
def test_a_layer_scale_is_known_by_what_its_module_does(name, scales):
    model = tiny(name)
    recording = vitrail.record(model, MODELS[name].inputs(), keep={"output_weight", "ffn_added"})
    blocks = next(m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) == 3)
    for block, one in zip(blocks, recording.layers, strict=True):
        assert torch.equal(one.attention_scale, block.get_parameter(scales.format(1)))
        assert torch.equal(one.ffn_scale, block.get_parameter(scales.format(2)))


class OnMaps(nn.Module):
    """Attention between convolutions over feature maps, which take no rows of channels."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(8, 24, 1)
        self.out = nn.Sequential(nn.GELU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x):
        q, k, v = self.mix(x).flatten(2).unflatten(1, (3, 2, 4)).transpose(3, 4).unbind(1)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[2:]))


class MapBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.feed = OnMaps(), nn.Sequential(nn.Conv2d(8, 12, 1), nn.GELU(), nn.Conv2d(12, 8, 1))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.feed(x)


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 3)
        self.blocks = nn.Sequential(MapBlock(), nn.MaxPool2d(3), MapBlock())

    def forward(self, x):
        return self.head(self.blocks(self.patches(x)).mean(dim=(2, 3)))


def test_projections_that_take_feature_maps_are_no_raw_error():
    torch.manual_seed(0)
    model, x = Maps().double().eval(), torch.randn(2, 3, 12, 12).double()
    assert vitrail.explain(model, x, "gae", 1).scores.shape == (2, 9)
    assert vitrail.explain(model, x, target=1).scores.shape == (2, 9)
    with pytest.raises(VitrailError):
        vitrail.explain(model, x, "tokentm", 1)
