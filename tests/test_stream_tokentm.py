"""TokenTM on several streams against whole matrices: transformed vectors are formed, modules are called, in float64."""

import pytest
import torch
import transformers
from stream_models import SEQ2SEQ, TABLE, prepared
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import MethodError, SeamError

EXACT = {"atol": 1e-12, "rtol": 1e-6}


class Aggregation:
    """C of the paper for all tokens of all streams of one sample; every update map is applied to whole rows."""

    def __init__(self, count):
        self.rows = torch.eye(count, dtype=torch.float64)
        self.lengths = torch.full((count,), torch.nan, dtype=torch.float64)

    def begin(self, tokens, vectors):
        self.lengths[tokens] = vectors.norm(dim=1)

    def attend(self, queries, keys, maps, gradients, vectors, transformed, rows=None):
        """`U = I + E_h[G+ A diag(w)]` for maps `[h, q, k]` and transformed vectors `[h, k, d]`."""
        scaled = maps * gradients * weights(vectors, transformed)[:, None]
        mixing = scaled.clamp(min=0).mean(dim=0) * (1 if rows is None else rows[:, None])
        self.rows[queries] = self.rows[queries] + mixing @ self.rows[keys]

    def feed(self, tokens, vectors, transformed):
        self.rows[tokens] = self.rows[tokens] * (1 + weights(vectors, transformed[None]).T)

    def join(self, new, old, shares):
        self.rows[new] = self.rows[new] + shares @ self.rows[old]

    def read(self, weights):
        return (weights @ self.rows) * self.lengths


def weights(vectors, transformed):
    """Length ratio times the softmax of cosines over all tokens, for `[n, d]` and `[h, n, d]`."""
    lengths, before = transformed.norm(dim=2), vectors.norm(dim=1)
    cosines = (transformed * vectors).sum(dim=2) / (lengths * before)
    return lengths / before * cosines.exp() / cosines.exp().sum(dim=1, keepdim=True)


def eager(model):
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"


def watch(model, ends):
    """Run-time table: for every module whose name ends so, what it was given and gave."""
    seen = {}

    def hook(name):
        def keep(module, args, kwargs, out):
            given = args[0] if args else kwargs.get("hidden_states")
            seen[name] = (given, out[0] if isinstance(out, tuple) else out, kwargs, out)

        return keep

    for name, module in model.named_modules():
        if name.endswith(ends):
            module.register_forward_hook(hook(name), with_kwargs=True)
    return seen


def by_head(values, weight, heads):
    """Values `[n, h * e]` through the slices of an output projection `[d, h * e]`: `[h, n, d]`."""
    values, slices = (x.unflatten(-1, (heads, -1)) for x in (values, weight))
    return torch.einsum("nhe,dhe->hnd", values, slices)


def probability(logits, token):
    return logits.softmax(dim=-1)[..., token].sum()


NAMES = {
    "bart": ("self_attn", "encoder_attn", "v_proj", "out_proj", "fc1", "fc2"),
    "t5": ("SelfAttention", "EncDecAttention", "v", "o", "DenseReluDense", "DenseReluDense"),
}


def seq2seq_matrices(name, model, inputs, sample):
    """Rows of C for an encoder-decoder, all sub-layers in the order of the forward pass."""
    own, cross, value, output, first, last = NAMES[name]
    seen = watch(model, (own, cross, f".{value}", first, last, ".layer.0", ".layer.1", ".layer.2"))
    out = model(**{n: x[sample : sample + 1] for n, x in inputs.items()}, output_attentions=True)
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    maps = {kind: getattr(out, kind) for kind in kinds}
    p = probability(out.logits[0, 4], 7)
    grads = {kind: torch.autograd.grad(p, maps[kind], retain_graph=True) for kind in kinds}
    modules, heads = dict(model.named_modules()), 2
    n, m = inputs["input_ids"].shape[1], inputs["decoder_input_ids"].shape[1]
    found, tokens = Aggregation(n + m), {"encoder": torch.arange(n), "decoder": torch.arange(n, n + m)}
    stem = {"bart": "model.{}.layers.{}", "t5": "{}.block.{}"}[name]
    with torch.no_grad():
        for side in ("encoder", "decoder"):
            for i in range(2):
                layer = stem.format(side, i)
                for kind in (own, cross) if side == "decoder" else (own,):
                    path = f"{layer}.{kind}" if name == "bart" else f"{layer}.layer.{int(kind == cross)}.{kind}"
                    state = seen[path if name == "bart" else path.rpartition(".")[0]][0][0]
                    if i == 0 and kind == own:
                        found.begin(tokens[side], state)
                    keys = tokens["encoder"] if kind == cross else tokens[side]
                    given = seen[f"{path}.{value}"][0][0]
                    vectors = given if kind == cross else state
                    transformed = by_head(seen[f"{path}.{value}"][1][0], modules[f"{path}.{output}"].weight, heads)
                    maps_of = "cross_attentions" if kind == cross else f"{side}_attentions"
                    found.attend(tokens[side], keys, maps[maps_of][i][0], grads[maps_of][i][0], vectors, transformed)
                if name == "bart":
                    found.feed(tokens[side], seen[f"{layer}.fc1"][0][0], seen[f"{layer}.fc2"][1][0])
                else:
                    feed = f"{layer}.layer.{1 if side == 'encoder' else 2}"
                    found.feed(tokens[side], seen[feed][0][0], seen[f"{feed}.DenseReluDense"][1][0])
    start = torch.zeros(n + m, dtype=torch.float64)
    start[n + 4] = 1
    return found.read(start).split([n, m])


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_an_encoder_decoder_equals_whole_matrices(name):
    model, inputs = prepared(TABLE[name])
    found = vitrail.explain(model, inputs, "tokentm", targets.logit(7, position=4))
    eager(model)
    for sample in range(2):
        encoder, decoder = seq2seq_matrices(name, model, inputs, sample)
        assert_close(found.streams["encoder"].scores[sample], encoder, **EXACT)
        assert_close(found.streams["decoder"].scores[sample], decoder, **EXACT)
    assert any("value projection" in line for line in found.provenance["assumed"])


def pre_norm(found, seen, modules, layer, tokens, maps, names, heads):
    """One block of a tower or of a language model: attention after a norm, then a feed-forward part after a norm."""
    output, after = names
    state = seen[layer][0][0]
    values = seen[f"{layer}.self_attn.v_proj"][1][0]
    weight = modules[f"{layer}.self_attn.{output}"].weight
    groups = weight.shape[1] // values.shape[1]
    values = values.unflatten(-1, (heads // groups, -1)).repeat_interleave(groups, dim=1).flatten(1)
    found.attend(tokens, tokens, *maps, state, by_head(values, weight, heads))
    found.feed(tokens, seen[f"{layer}.{after}"][0][0], seen[f"{layer}.mlp"][1][0])
    return state


def test_a_language_model_with_a_tower_equals_whole_matrices():
    model, inputs = prepared(TABLE["llava"])
    found = vitrail.explain(model, inputs, "tokentm", targets.next_token(7))
    eager(model)
    ends = tuple(f"layers.{i}" for i in range(3))
    seen = watch(model, (*ends, "self_attn", "v_proj", "mlp", "layer_norm2", "post_attention_layernorm"))
    out = model(**{n: x[:1] for n, x in inputs.items()})
    tower, text = ([n for n in seen if part in n and n.endswith("self_attn")] for part in ("vision", "language"))
    maps = {n: seen[n][3][1] for n in [*tower[:-1], *text]}  # the tower is read behind its last but one block
    grads = torch.autograd.grad(probability(out.logits[0, -1], 7), list(maps.values()))
    pairs = {n: (a.detach()[0], g[0]) for (n, a), g in zip(maps.items(), grads, strict=True)}
    patches, words, modules = torch.arange(17), torch.arange(17, 39), dict(model.named_modules())
    aggregation = Aggregation(39)
    with torch.no_grad():
        for part, tokens, names in ((tower[:-1], patches, ("out_proj", "layer_norm2")),
                                    (text, words, ("o_proj", "post_attention_layernorm"))):  # fmt: skip
            for i, n in enumerate(part):
                layer = n.rpartition(".")[0]
                if i == 0:
                    aggregation.begin(tokens, seen[layer][0][0])
                    if part is text:
                        images = words[inputs["input_ids"][0] == 39]
                        aggregation.join(images, patches[1:], torch.eye(16, dtype=torch.float64))
                pre_norm(aggregation, seen, modules, layer, tokens, pairs[n], names, 2)
        start = torch.zeros(39, dtype=torch.float64)
        start[-1] = 1
        image, prompt = aggregation.read(start).split([17, 22])
    assert_close(found.streams["text"].scores[0], prompt, **EXACT)
    assert_close(found.streams["image"].scores[0], image[1:], **EXACT)


def windows(side, size, shift):
    """The tokens of each window of a grid that is rolled by `shift`."""
    grid = torch.arange(side * side).view(side, side).roll((-shift, -shift), (0, 1))
    return grid.unflatten(0, (-1, size)).unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1).flatten(1)


def merges(side):
    shares = torch.zeros((side // 2) ** 2, side * side, dtype=torch.float64)
    for y in range(side):
        for x in range(side):
            shares[y // 2 * (side // 2) + x // 2, y * side + x] = 1 / 4
    return shares


SWIN_PARTS = {
    "swin": ("attention", "attention.v_proj", "attention.o_proj", "mlp.fc2"),
    "swin_v2": ("attention.self", "attention.self.value", "attention.output.dense", "output.dense"),
}
"""Attention, the projections of values and of outputs, and the end of the feed-forward part."""


@pytest.mark.parametrize("name", ["swin", pytest.param("swin_v2", marks=pytest.mark.slow)])
def test_shifted_windows_and_merges_equal_whole_matrices(name):
    """Cosines are compared within a window. The second version has a norm between the projection and the stream."""
    model, inputs = prepared(TABLE[name])
    found = vitrail.explain(model, inputs, "tokentm", 3)
    eager(model)
    seen = watch(model, (".blocks.0", ".blocks.1", *SWIN_PARTS[name], "layernorm_before", "layernorm_after"))
    out = model(inputs["pixel_values"][:1], output_attentions=True)
    names = [n for n in seen if n.endswith(f".{SWIN_PARTS[name][0]}")]
    maps = [seen[n][3][1] for n in names]
    grads = torch.autograd.grad(probability(out.logits[0], 3), maps)
    modules, aggregation = dict(model.named_modules()), Aggregation(256 + 64)
    with torch.no_grad():
        for i, (n, a, g) in enumerate(zip(names, maps, grads, strict=True)):
            layer, side = n.removesuffix(f".{SWIN_PARTS[name][0]}"), (16, 8)[i // 2]
            parts = {part: f"{layer}.{end}" for part, end in zip(("", "value", "output", "feed"), SWIN_PARTS[name], strict=True)}  # fmt: skip  # noqa: E501
            tokens = i // 2 * 256 + torch.arange(side * side)
            if i == 2:
                aggregation.join(tokens, torch.arange(256), merges(16))
            if i % 2 == 0:
                aggregation.begin(tokens, seen[layer][0][0])
            inside = windows(side, 4, 2 * (i % 2))
            swin_block(aggregation, seen, modules, layer, parts, tokens, inside, a.detach(), g)
    start = torch.cat([torch.zeros(256), torch.full((64,), 1 / 64)]).double()
    assert_close(found.scores[0], aggregation.read(start)[:256], **EXACT)


def swin_block(found, seen, modules, layer, parts, tokens, inside, maps, grads):
    state, weight, scale = seen[layer][0][0], modules[parts["output"]].weight, None
    values = seen[parts["value"]][1].flatten(0, -2).view(len(inside), 16, -1)
    norm, (given, gave) = modules[f"{layer}.layernorm_before"], seen[f"{layer}.layernorm_before"][:2]
    behind = "swinv2" in layer
    if behind:  # statistics of the pass, then one matrix for all tokens
        scale = (given[0].var(dim=-1, correction=0) + norm.eps).rsqrt()
        weight = norm.weight[:, None] * (weight - weight.mean(dim=0))
    for window, some in enumerate(inside):
        transformed = by_head(values[window], weight, maps.shape[1])
        rows = None if scale is None else scale[some]
        found.attend(tokens[some], tokens[some], maps[window], grads[window], state[some], transformed, rows)
    middle = state + gave[0] if behind else seen[f"{layer}.layernorm_after"][0][0]
    added = seen[f"{layer}.layernorm_after"][1][0] if behind else seen[parts["feed"]][1][0]
    found.feed(tokens, middle, added)


def test_padding_and_batches_change_nothing():
    model, inputs = prepared(TABLE["bart"])
    target = targets.logit([7, 9], position=4)
    found = vitrail.explain(model, inputs, "tokentm", target)
    pad = torch.nn.functional.pad
    longer = {
        "input_ids": pad(inputs["input_ids"], (0, 3), value=1),
        "attention_mask": pad(inputs["attention_mask"], (0, 3)),
        "decoder_input_ids": pad(inputs["decoder_input_ids"], (0, 2), value=1),
        "decoder_attention_mask": pad(torch.ones_like(inputs["decoder_input_ids"]), (0, 2)),
    }
    padded = vitrail.explain(model, longer, "tokentm", target)
    for name in ("encoder", "decoder"):
        count = found.streams[name].scores.shape[1]
        assert_close(padded.streams[name].scores[:, :count], found.streams[name].scores, **EXACT)
        assert float(padded.streams[name].scores[:, count:].abs().max()) == 0
        for i, token in enumerate((7, 9)):
            alone = {n: x[i : i + 1] for n, x in inputs.items()}
            one = vitrail.explain(model, alone, "tokentm", targets.logit(token, position=4))
            assert_close(one.streams[name].scores[0], found.streams[name].scores[i], **EXACT)


def test_without_any_weight_it_is_gae():
    model, inputs = prepared(TABLE["t5"])
    options = {"length": False, "direction": False, "ffn": False, "initial": "identity", "scalar": "logit"}
    found = vitrail.explain(model, inputs, "tokentm", targets.logit(7, position=4), **options)
    gae = vitrail.explain(model, inputs, "gae", targets.logit(7, position=4))
    for name in ("encoder", "decoder"):
        assert_close(found.streams[name].scores, gae.streams[name].scores)


def test_options_that_cannot_be_measured_are_named():
    model, inputs = prepared(TABLE["t5"])
    with pytest.raises(MethodError, match=r"value_bias=False.*several streams"):
        vitrail.explain(model, inputs, "tokentm", targets.logit(7, position=4), value_bias=False)


class Gated(torch.nn.Module):
    """A text that asks for another one; what attention gives is gated by the token that asks."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 5)
        self.maps = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(5))

    def attend(self, x, y):
        heads = [f(t).unflatten(-1, (2, 8)).transpose(1, 2) for f, t in zip(self.maps, (x, y, y), strict=False)]
        given = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.maps[3](given * self.maps[4](x).sigmoid())

    def forward(self, input_ids, decoder_input_ids):
        x, y = self.words(decoder_input_ids), self.words(input_ids)
        y = y + self.attend(y, y)
        return self.head((x + self.attend(x, y)).mean(dim=1))


def test_a_gate_is_refused_by_name_and_gae_still_walks():
    torch.manual_seed(0)
    model = Gated().double().eval()
    inputs = {"input_ids": torch.randint(4, 40, (2, 7)), "decoder_input_ids": torch.randint(4, 40, (2, 5))}
    with pytest.raises(SeamError, match="not the same linear map at every token"):
        vitrail.explain(model, inputs, "tokentm", 3)
    kept = vitrail.compare(model, inputs, methods=["gae", "tokentm"], target=3, on_error="keep")
    assert [one.method for one in kept] == ["gae"]


def test_windows_that_are_filled_up_give_nothing_to_the_filling():
    model, _ = prepared(TABLE["swin"])
    picture = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1)).double()
    found = vitrail.explain(model, picture, "tokentm", 3)
    assert found.grid == (14, 14)
    assert_close(vitrail.explain(model, picture[1:], "tokentm", 3).scores[0], found.scores[1], **EXACT)
    assert bool((found.scores > 0).all())


def test_feed_forward_layers_are_those_of_all_pictures_that_stand_in_one_row():
    """Qwen attends to each picture in a call of its own, and transforms the patches of all of them together."""
    case = TABLE["qwen2_vl_two"]
    model, inputs = prepared(case)
    patches = inputs["pixel_values"]
    half = len(patches) // 2
    first = {**{name: x[:1] for name, x in inputs.items()}, "pixel_values": patches[:half]}
    first["image_grid_thw"] = inputs["image_grid_thw"][:2]
    together = vitrail.explain(model, inputs, "tokentm", case.target)
    alone = vitrail.explain(model, first, "tokentm", case.target)
    for name in ("image", "image_2", "text"):
        assert_close(alone.streams[name].scores, together.streams[name].scores[:1])


class Masked(torch.nn.Module):
    """An `nn.Transformer` that is told of padding by the names of torch."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 40)
        self.body = torch.nn.Transformer(16, 2, 2, 1, 24, batch_first=True)

    def forward(self, src, tgt, src_key_padding_mask):
        masks = {"src_key_padding_mask": src_key_padding_mask, "memory_key_padding_mask": src_key_padding_mask}
        return self.head(self.body(self.embed(src), self.embed(tgt), **masks))


def test_tokens_that_no_query_sees_take_no_part_whatever_their_mask_is_called():
    torch.manual_seed(0)
    model = Masked().double().eval()
    words = {"src": torch.randint(0, 40, (2, 7)), "tgt": torch.randint(0, 40, (2, 5))}
    plain = {**words, "src_key_padding_mask": torch.zeros(2, 7, dtype=torch.bool)}
    longer = torch.nn.functional.pad(words["src"], (0, 3), value=5)
    padded = {**words, "src": longer, "src_key_padding_mask": torch.arange(10).expand(2, -1) >= 7}
    target = targets.logit(3, position=4)
    one, other = (vitrail.explain(model, inputs, "tokentm", target) for inputs in (plain, padded))
    assert_close(other.streams["encoder"].scores[:, :7], one.streams["encoder"].scores)
    assert_close(other.streams["decoder"].scores, one.streams["decoder"].scores)
    assert float(other.streams["encoder"].scores[:, 7:].abs().max()) == 0


def test_pictures_of_several_samples_in_one_map_are_refused():
    case = TABLE["mistral3"]
    model, inputs = prepared(case)
    with pytest.raises(SeamError, match="several samples stand in one map"):
        vitrail.explain(model, inputs, "tokentm", case.target)
    assert vitrail.explain(model, prepared(case, batch=1)[1], "tokentm", case.target).streams["image"].grid == (4, 4)


def test_padding_of_a_text_that_is_given_to_its_own_decoder_takes_no_part():
    """BART classifies by a decoder that reads the text itself, moved by one place and without a mask."""
    torch.manual_seed(0)
    config = transformers.BartConfig(**{**SEQ2SEQ, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2})
    model = transformers.BartForSequenceClassification(config).double().eval()
    for x in model.parameters():
        x.data += 0.1 * torch.randn_like(x)
    words = torch.tensor([[3, 7, 11, 9, 4, 12, 8, 2], [5, 15, 12, 11, 6, 2, 0, 0]])
    together = vitrail.explain(model, {"input_ids": words, "attention_mask": (words != 0).long()}, "tokentm", 1)
    alone = vitrail.explain(model, {"input_ids": words[1:, :6]}, "tokentm", 1)
    for name in ("encoder", "decoder"):
        assert_close(together.streams[name].scores[1:, :6], alone.streams[name].scores)
        assert float(together.streams[name].scores[1, 6:].abs().max()) == 0


ADAPTED = {"bart": ["q_proj", "v_proj", "k_proj", "out_proj", "fc1", "fc2"], "t5": ["q", "k", "v", "o", "wi", "wo"]}


@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_adapters_of_peft_count_as_if_merged(name, options):
    """What an adapter sums inside of a projection is no feed-forward layer, and no vector that values are made of."""
    peft = pytest.importorskip("peft")
    model, inputs = prepared(TABLE[name])
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=ADAPTED[name], init_lora_weights=False, **options)
    model = peft.get_peft_model(model, config).double().eval()
    target = targets.logit(7, position=4)
    first, later = (vitrail.explain(model, inputs, "tokentm", target) for _ in range(2))
    merged = vitrail.explain(model.merge_and_unload(), inputs, "tokentm", target)
    for name, one in merged.streams.items():
        assert_close(first.streams[name].scores, one.scores, **EXACT)
        assert_close(later.streams[name].scores, one.scores, **EXACT)


class Parallel(torch.nn.Module):
    """Two texts, the first read by attention and a feed-forward part side by side, which `join` adds to the stream."""

    def __init__(self, join):
        super().__init__()
        self.words, self.norm, self.join = torch.nn.Embedding(40, 12), torch.nn.LayerNorm(12), join
        self.own = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(4))
        self.cross = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(4))
        self.ffn = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.Linear(20, 12))
        self.head, self.attend = torch.nn.Linear(12, 5), torch.nn.functional.scaled_dot_product_attention

    def heads(self, maps, x, y):
        return [f(z).unflatten(-1, (2, 6)).transpose(1, 2) for f, z in zip(maps, (x, y, y), strict=False)]

    def states(self, input_ids, decoder_input_ids):
        x, y = self.words(input_ids), self.words(decoder_input_ids)
        n = self.norm(x)
        given, added = self.own[3](self.attend(*self.heads(self.own, n, n)).transpose(1, 2).flatten(2)), self.ffn(n)
        read = self.join(x, given, added)
        asked = y + self.cross[3](self.attend(*self.heads(self.cross, y, read)).transpose(1, 2).flatten(2))
        return x, n, added, read, y, asked

    def forward(self, input_ids, decoder_input_ids):
        return self.head(self.states(input_ids, decoder_input_ids)[-1].mean(dim=1))


JOINED = {
    "first the two": lambda x, a, f: (a + f) + x,
    "the other way round": lambda x, a, f: x + (f + a),
    "one after the other": lambda x, a, f: (x + a) + f,
}


@pytest.mark.parametrize("order", JOINED)
def test_a_feed_forward_part_beside_attention_takes_part(order):
    torch.manual_seed(0)
    model, maps = Parallel(JOINED[order]).double().eval(), []
    inputs = {"input_ids": torch.randint(0, 40, (1, 6)), "decoder_input_ids": torch.randint(0, 40, (1, 4))}
    found = [vitrail.explain(model, inputs, "tokentm", 3) for _ in range(2)]

    def by_hand(q, k, v):
        maps.append((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1))
        return maps[-1] @ v

    model.attend = by_hand
    x, n, added, read, y, asked = (z[0] for z in model.states(**inputs))
    p = probability(model.head(asked.mean(dim=0)), 3)
    grads, values = torch.autograd.grad(p, maps), [model.own[2](n), model.cross[2](read)]
    first, second, whole = torch.arange(6), torch.arange(6, 10), Aggregation(10)
    with torch.no_grad():
        whole.begin(first, x)
        whole.begin(second, y)
        whole.attend(first, first, maps[0][0], grads[0][0], x, by_head(values[0], model.own[3].weight, 2))
        whole.feed(first, x, added)
        whole.attend(second, first, maps[1][0], grads[1][0], read, by_head(values[1], model.cross[3].weight, 2))
        wanted = whole.read(torch.tensor([0.0] * 6 + [0.25] * 4).double())
    for one in found:
        assert_close(torch.cat([s.scores[0] for s in one.streams.values()]).sort()[0], wanted.sort()[0], **EXACT)


class Activated(Parallel):
    """The answer is read behind an activation that sums a state and what is made of each of its numbers."""

    def __init__(self, activation):
        super().__init__(JOINED["first the two"])
        self.dense, self.activation = torch.nn.Linear(12, 12), activation

    def forward(self, input_ids, decoder_input_ids):
        return self.head(self.activation(self.dense(self.states(input_ids, decoder_input_ids)[-1])).mean(dim=1))


def test_an_activation_that_is_written_as_a_sum_is_no_feed_forward_part():
    inputs, found = {"input_ids": torch.arange(6)[None], "decoder_input_ids": torch.arange(9, 5, -1)[None]}, []
    for activation in (transformers.activations.NewGELUActivation(), torch.nn.GELU(approximate="tanh")):
        torch.manual_seed(0)
        found.append(vitrail.explain(Activated(activation).double().eval(), inputs, "tokentm", 3))
    for name, one in found[0].streams.items():
        assert_close(one.scores, found[1].streams[name].scores, **EXACT)
