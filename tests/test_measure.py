"""What is measured on a model: where tokens come from, whether rows are tokens, what the prediction reads."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from stream_models import TABLE as STREAMS
from stream_models import prepared
from tiny_models import DECODER, MODELS, tiny
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import vitrail
from vitrail import Anatomy, targets
from vitrail.capture.structure.token_codes import MIXED, NOWHERE, sources
from vitrail.errors import AnatomyError, SeamError, TargetError

BLOCKS = Anatomy(blocks="blocks")
WALKING = ("rollout", "gae", "tokentm", "complete_gradient")


class Block(nn.Module):
    """Attention as users write it, with places where tokens can be moved about."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def split(self, x):
        b, t, d = x.shape
        return (
            y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=2)
        )

    def attend(self, x):
        q, k, v = self.split(x)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.proj(self.attend(x))
        return x + self.ffn(x)


class Windows(Block):
    """Windows of four tokens folded into the head axis."""

    def attend(self, x):
        q, k, v = (y.reshape(y.shape[0], -1, 4, y.shape[3]) for y in self.split(x))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.reshape(x.shape[0], self.heads, x.shape[1], -1).transpose(1, 2).flatten(2)


class BatchWindows(Block):
    """Windows of four tokens folded into the batch axis, as in Swin."""

    def attend(self, x):
        b, t, d = x.shape
        return super().attend(x.reshape(-1, 4, d)).reshape(b, t, d)


class Shuffled(Block):
    """Tokens in another order inside attention, and back again after it."""

    def attend(self, x):
        order = torch.arange(x.shape[1]).roll(3)
        return super().attend(x[:, order])[:, order.argsort()]


class ShuffledKeys(Block):
    """Keys and values in another order than queries: the result is the same, the columns of the map are not."""

    def attend(self, x):
        q, k, v = self.split(x)
        order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(3))
        return F.scaled_dot_product_attention(q, k[:, :, order], v[:, :, order]).transpose(1, 2).flatten(2)


class Packed(Block):
    """All samples in one sequence, kept apart by a mask."""

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.split(x.reshape(1, b * t, d))
        sample = torch.arange(b * t) // t
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=sample[:, None] == sample[None])
        return out.transpose(1, 2).reshape(b, t, d)


class Convolved(Block):
    """Keys that see their neighbours."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(16, 16, 3, padding=1)

    def attend(self, x):
        return super().attend(self.mix(x.transpose(1, 2)).transpose(1, 2))


class ProjectedTokens(Block):
    """Keys that are made of all tokens, by a projection along the axis of tokens that starts at zero."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        nn.init.zeros_(self.mix.weight)

    def attend(self, x):
        return super().attend(x + self.mix(x.transpose(1, 2)).transpose(1, 2))


class Flipped(Block):
    """What attention gives is added to the tokens in reverse."""

    def attend(self, x):
        return super().attend(x).flip(1)


class FlippedByHand(Block):
    """The same, where attention is written out as softmax and product."""

    def attend(self, x):
        q, k, v = self.split(x)
        return ((q @ k.transpose(2, 3)).softmax(dim=3) @ v).transpose(1, 2).flatten(2).flip(1)


class ConvolvedAfterByHand(FlippedByHand):
    """Attention written by hand, whose results are mixed with those of the neighbours."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(16, 16, 3, padding=1)

    def attend(self, x):
        return self.mix(super().attend(x).flip(1).transpose(1, 2)).transpose(1, 2)


class Picture(nn.Module):
    """A Vision Transformer of one's own; the patch, the extra tokens and their places are free."""

    def __init__(self, block=Block, patch=(8, 8), before=1, after=0, order=None, read=0):
        super().__init__()
        self.embed = nn.Conv2d(3, 16, patch, stride=patch)
        self.before, self.after = nn.Parameter(torch.randn(1, before, 16)), nn.Parameter(torch.randn(1, after, 16))
        self.blocks = nn.ModuleList([block() for _ in range(2)])
        self.head, self.order, self.read = nn.Linear(16, 5), order, read

    def tokens(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x if self.order is None else x[:, self.order]
        return torch.cat([self.before.expand(len(x), -1, -1), x, self.after.expand(len(x), -1, -1)], dim=1)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, self.read])


def built(make):
    torch.manual_seed(0)
    return make().double().eval()


def picture(height=32, width=32, batch=2):
    return torch.randn(batch, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "block",
    [
        Windows,
        BatchWindows,
        Shuffled,
        ShuffledKeys,
        Packed,
        Convolved,
        ProjectedTokens,
        Flipped,
        FlippedByHand,
        ConvolvedAfterByHand,
    ],
)
@pytest.mark.parametrize("method", WALKING)
def test_attention_whose_rows_are_not_the_tokens_is_refused(block, method):
    model = built(lambda: Picture(block, before=0, read=3))
    with pytest.raises(SeamError, match="cannot be read token by token"):
        vitrail.explain(model, picture(), method, 0, anatomy=BLOCKS)


@pytest.mark.parametrize("block", [Windows, Shuffled, Convolved])
def test_gradients_at_the_input_need_no_attention(block):
    model = built(lambda: Picture(block, before=0, read=3))
    found = vitrail.explain(model, picture(), "integrated_gradients", 0, anatomy=BLOCKS, level="pixels", steps=4)
    assert found.grid == (4, 4)
    assert bool(found.scores.abs().sum() > 0)


def test_plain_blocks_are_not_refused_in_any_precision():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = built(Picture).to(dtype)
        assert vitrail.explain(model, picture().to(dtype), "gae", 0, anatomy=BLOCKS).grid == (4, 4)


@pytest.mark.parametrize(
    ("patch", "size", "grid"),
    [
        ((4, 16), (32, 64), (8, 4)),
        ((16, 4), (32, 64), (2, 16)),
        ((8, 8), (35, 47), (4, 5)),
        ((31, 5), (31, 40), (1, 8)),
    ],
)
def test_the_grid_is_that_of_the_patches_and_not_of_a_square_root(patch, size, grid):
    model, x = built(lambda: Picture(patch=patch)), picture(*size)
    found = vitrail.explain(model, x, "gae", 0, anatomy=BLOCKS)
    assert found.grid == grid
    pixels = vitrail.explain(model, x, "integrated_gradients", 0, anatomy=BLOCKS, level="pixels", steps=2)
    inside = pixels.pixels[:, : patch[0], : patch[1]].sum(dim=(1, 2))
    assert_close(pixels.scores[:, 0], inside)


@pytest.mark.parametrize(("before", "after", "read"), [(1, 0, 0), (0, 4, -1), (2, 3, 0), (0, 1, -1), (5, 0, 2)])
def test_tokens_that_come_from_no_patch_are_found_wherever_they_stand(before, after, read):
    model = built(lambda: Picture(before=before, after=after, read=read))
    found = vitrail.explain(model, picture(), "gae", 0, anatomy=BLOCKS)
    expected = chefer(model, picture(), read)[:, before : before + 16]
    assert found.grid == (4, 4)
    assert_close(found.scores, expected, atol=1e-9, rtol=1e-7)


def test_patches_in_another_order_come_back_to_their_places():
    order = torch.randperm(16, generator=torch.Generator().manual_seed(4))
    mixed, plain = built(lambda: Picture(order=order)), built(Picture)
    mixed.load_state_dict(plain.state_dict())
    found, expected = (vitrail.explain(m, picture(), "gae", 0, anatomy=BLOCKS) for m in (mixed, plain))
    assert_close(found.scores, expected.scores)  # without positions, order changes nothing but the labels


def test_a_prefix_that_is_not_the_measured_one_is_refused():
    with pytest.raises(AnatomyError, match="says that 3 tokens stand before the patches, but 1"):
        vitrail.explain(built(Picture), picture(), "gae", 0, anatomy=Anatomy(blocks="blocks", prefix=3))


def chefer(model, x, read, target=0):
    """Generic attention explainability as whole matrices, from the model's own tokens."""
    tokens, maps = model.tokens(x), []
    for block in model.blocks:
        q, k, v = block.split(tokens)
        maps.append((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1))
        tokens = tokens + block.proj((maps[-1] @ v).transpose(1, 2).flatten(2))
        tokens = tokens + block.ffn(tokens)
    scalar = model.head(tokens[:, read])[:, target].sum()
    return rolled(maps, torch.autograd.grad(scalar, maps))[:, read]


def rolled(maps, gradients):
    relevance = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for one, gradient in zip(maps, gradients, strict=True):
        relevance = relevance + (one * gradient).clamp(min=0).mean(dim=1) @ relevance
    return relevance


class ImageAndText(nn.Module):
    """Image tokens and text tokens in one sequence."""

    def __init__(self):
        super().__init__()
        self.picture, self.words = Picture(), nn.Embedding(60, 16)
        self.blocks, self.head = self.picture.blocks, self.picture.head

    def forward(self, pixel_values, input_ids):
        x = torch.cat([self.picture.tokens(pixel_values), self.words(input_ids)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def test_image_and_text_tokens_in_one_sequence_are_not_drawn_as_one_grid():
    model = built(ImageAndText)
    ids = torch.randint(3, 60, (2, 8))
    found = vitrail.explain(model, {"pixel_values": picture(), "input_ids": ids}, "gae", 0, anatomy=BLOCKS)
    assert found.grid == (4, 4)
    assert found.scores.shape == (2, 16)


class Text(nn.Module):
    """A text classifier with a class token of its own, at the front or at the end."""

    def __init__(self, extra=1, *, at_end=False):
        super().__init__()
        self.words, self.extra, self.at_end = nn.Embedding(60, 16), nn.Parameter(torch.randn(1, extra, 16)), at_end
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(16, 5)

    def forward(self, input_ids):
        x, extra = self.words(input_ids), self.extra.expand(len(input_ids), -1, -1)
        x = torch.cat([x, extra] if self.at_end else [extra, x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1 if self.at_end else 0])


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("extra", [1, 3])
def test_tokens_that_come_from_no_word_have_no_score(at_end, extra):
    model, ids = built(lambda: Text(extra, at_end=at_end)), torch.randint(3, 60, (2, 7))
    found = vitrail.explain(model, {"input_ids": ids}, "gae", 0, anatomy=BLOCKS)
    assert found.scores.shape == ids.shape
    assert len(found.tokens[0]) == 7
    assert "</" in found.to_html()
    everything = vitrail.explain(model, {"input_ids": ids}, target=0, anatomy=BLOCKS)
    assert everything.scores.shape == ids.shape


CAUSAL = {
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": 60, "n_embd": 24, "n_layer": 3, "n_head": 3, "pad_token_id": 0}),
    "LlamaForCausalLM": ("LlamaConfig", DECODER),
    "MistralForCausalLM": ("MistralConfig", DECODER),
    "Qwen2ForCausalLM": ("Qwen2Config", DECODER),
    "Qwen3ForCausalLM": ("Qwen3Config", {**DECODER, "head_dim": 8}),
}
FUNCTIONS = {
    "one position": (lambda logits: logits[:, 3, 7], [3]),
    "a sum of two": (lambda logits: logits[:, 2, 7] + logits[:, 5, 4], [2, 5]),
    "a mean of all": (lambda logits: logits[:, :, 7].mean(dim=1), list(range(9))),
    "the last": (lambda logits: logits[:, -1, 7], [8]),
}


def causal(name):
    config, options = CAUSAL[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**options, attn_implementation="eager")
    return getattr(transformers, name)(made).double().eval()


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("read", FUNCTIONS)
def test_a_function_of_a_language_model_is_read_where_it_reads(name, read):
    model, (function, rows) = causal(name), FUNCTIONS[read]
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(2))
    out = model(input_ids=ids, output_attentions=True)
    relevance = rolled(out.attentions, torch.autograd.grad(function(out.logits).sum(), out.attentions))
    found = vitrail.explain(model, {"input_ids": ids}, "gae", function)
    # The softmax of these models is computed in float32.
    assert_close(found.scores, relevance[:, rows].mean(dim=1), atol=1e-6, rtol=1e-4)
    for method in ("tokentm", "rollout", "attcat"):
        later = vitrail.explain(model, {"input_ids": ids}, method, function).scores[:, max(rows) + 1 :]
        assert_close(later, torch.zeros_like(later))


@pytest.mark.parametrize("readout", ["mean", "mean_all", "last", 3, "first_two"])
@pytest.mark.parametrize("method", ["gae", "rollout"])
def test_a_readout_that_the_gradient_contradicts_is_an_error(readout, method):
    anatomy = Anatomy(blocks="blocks", readout=readout)
    with pytest.raises(SeamError, match="the gradient of the target arrives at tokens 0 of the last block"):
        vitrail.explain(built(Picture), picture(), method, 0, anatomy=anatomy)


def test_a_readout_that_the_gradient_confirms_is_taken():
    model = built(Picture)
    named = vitrail.explain(model, picture(), "gae", 0, anatomy=Anatomy(blocks="blocks", readout="cls"))
    measured = vitrail.explain(model, picture(), "gae", 0, anatomy=BLOCKS)
    assert_close(named.scores, measured.scores)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(60, 16), nn.Linear(16, 60)
        self.transformer = nn.Transformer(16, 2, 2, 2, 24, batch_first=True)

    def forward(self, input_ids):
        x = self.words(input_ids)
        return self.head(self.transformer(x, x))


def test_an_answer_in_another_stream_is_not_explained_by_the_tokens_of_the_first():
    model, ids = built(Translator), torch.randint(3, 60, (2, 6))
    with pytest.raises(SeamError, match="call 2 of 6 does not read what call 1 gives: they stand side by side"):
        vitrail.explain(model, {"input_ids": ids}, "gae", targets.logit(5, position=2))


class Besides(nn.Module):
    """An encoder that reads what another one gives, and beside it what was there after some layers of that one."""

    def __init__(self, layers):
        super().__init__()
        self.words, self.head, self.layers = nn.Embedding(60, 16), nn.Linear(16, 5), layers
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True) for _ in range(4))

    def forward(self, input_ids):
        states = [self.words(input_ids)]
        for block in self.blocks[:2]:
            states.append(block(states[-1]))
        both = torch.cat([states[-1], states[self.layers]], dim=1)
        return self.head(self.blocks[3](self.blocks[2](both)).mean(dim=1))


@pytest.mark.parametrize("layers", [0, 1])
def test_tokens_that_pass_by_a_first_encoder_do_not_go_through_its_maps(layers):
    model, ids = built(lambda: Besides(layers)).double(), torch.randint(3, 60, (2, 6))
    maps = [m.double() for m in _mixing_maps(model, ids)]
    both = torch.full((2, 12), 1 / 12, dtype=torch.float64)
    for mixing in (maps[3], maps[2]):
        both = both + torch.einsum("bq,bqk->bk", both, mixing)
    whole, part = both[:, :6], both[:, 6:]
    for index in (1, 0):
        whole = whole + (part if layers == index + 1 else 0)
        whole = whole + torch.einsum("bq,bqk->bk", whole, maps[index])
    expected = whole + (part if layers == 0 else 0)
    assert_close(vitrail.explain(model, {"input_ids": ids}, "gae", 1).scores, expected)


def _mixing_maps(model, ids):
    """The mean over heads of the positive part of each map times its gradient, from attention written out."""
    maps = []

    def attend(query, key, value, *args, **kwargs):
        maps.append((query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1))
        return maps[-1] @ value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "scaled_dot_product_attention", attend)
        logits = model(ids)
    gradients = torch.autograd.grad(logits[:, 1].sum(), maps)
    return [(x * g).clamp(min=0).mean(dim=1).detach() for x, g in zip(maps, gradients, strict=True)]


def test_a_target_that_reads_nothing_is_an_error():
    with pytest.raises(TargetError, match="zero at every token"):
        vitrail.explain(built(Picture), picture(), "gae", lambda logits: logits[:, 0] * 0, anatomy=BLOCKS)


def test_structure_is_measured_once_and_a_later_call_runs_the_model_once(monkeypatch):
    model, inputs, passes = copy.deepcopy(tiny("hf_bert")), MODELS["hf_bert"].inputs(), []
    own = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: passes.append(1) or own(*args, **kwargs))
    counts = []
    for method in ("gae", "rollout", "attcat"):
        vitrail.explain(model, inputs, method)
        counts.append(len(passes))
        passes.clear()
    assert counts[0] > 1
    assert counts[1:] == [1, 1]


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_gpt2", "own_pre_norm", "own_time_first", "t5", "swin"])
def test_a_first_call_measures_a_model_in_one_pass(name):
    """Another runs up to the first block, and one is explained."""
    model, inputs = prepared(STREAMS[name]) if name in STREAMS else (copy.deepcopy(tiny(name)), MODELS[name].inputs())
    began, ended = [], []
    model.register_forward_pre_hook(lambda *_: began.append(1))
    model.register_forward_hook(lambda *_: ended.append(1))
    vitrail.explain(model, inputs, "gae")
    assert len(ended) == 2
    assert len(began) <= 3


class Deep(Picture):
    """Twelve blocks, so that the patch embedding is a small part of the work, as it is in real models."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(12)])


class Products(TorchDispatchMode):
    """Counts the floating-point operations of products and convolutions, forward and backward."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        counted = flop_registry.get(func.overloadpacket)
        self.count += 0 if counted is None else counted(*args, **(kwargs or {}), out_val=out)
        return out


def products(call):
    with Products() as counter:
        call()
    return counter.count


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_gpt2", "own"])
def test_a_first_explanation_makes_at_most_three_times_the_products_of_a_later_one(name):
    model, inputs = (built(Deep), picture()) if name == "own" else (MODELS[name].build(), MODELS[name].inputs())
    first, later = (products(lambda: vitrail.explain(model, inputs, "gae", 0)) for _ in range(2))
    assert 0 < later < first <= 3 * later


class Between(Picture):
    """Something happens to the tokens between the blocks."""

    def __init__(self, change):
        super().__init__()
        self.change, self.mix, self.fresh = change, nn.Conv1d(16, 16, 3, padding=1), nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        x = self.blocks[0](self.tokens(x))
        return self.head(self.blocks[1](self.change(self, x))[:, 0])


BETWEEN = {
    "flipped": lambda model, x: torch.cat([x[:, :1], x[:, 1:].flip(1)], dim=1),
    "rolled": lambda model, x: x.roll(1, dims=1),
    "convolved": lambda model, x: x + model.mix(x.transpose(1, 2)).transpose(1, 2),
    "replaced": lambda model, x: torch.cat([model.fresh.expand(len(x), -1, -1), x[:, 1:]], dim=1),
    "pruned": lambda model, x: x[:, :9],
    "samples swapped": lambda model, x: x.flip(0),
}


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("method", WALKING)
def test_tokens_that_are_moved_mixed_or_replaced_between_blocks_are_refused(change, method):
    model = built(lambda: Between(BETWEEN[change]))
    with pytest.raises(SeamError, match="integrated_gradients"):
        vitrail.explain(model, picture(), method, 1, anatomy=BLOCKS)


def test_a_norm_between_blocks_moves_no_token():
    found, expected = (
        vitrail.explain(built(lambda change=change: Between(change)), picture(), "gae", 1, anatomy=BLOCKS).scores
        for change in (lambda model, x: x * 1.0, lambda model, x: x)
    )
    assert_close(found, expected)


class Sorted(Picture):
    """Patches in an order of the picture's own, or of chance."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def tokens(self, x):
        first, rest = super().tokens(x).split([1, 16], dim=1)
        return torch.cat([first, rest.gather(1, self.by(rest)[..., None].expand_as(rest))], dim=1)


@pytest.mark.parametrize(
    "by", [lambda x: x.detach().sum(dim=2).argsort(dim=1), lambda x: torch.randperm(16).expand(len(x), -1)]
)
@pytest.mark.parametrize("batch", [1, 2])
def test_an_order_of_tokens_that_is_not_always_the_same_is_refused(by, batch):
    model = built(lambda: Sorted(by))
    alike = picture(batch=1).expand(batch, -1, -1, -1).contiguous()
    with pytest.raises(SeamError, match="order of the tokens changes"):
        vitrail.explain(model, alike, "gae", 1, anatomy=BLOCKS)
    at_pixels = vitrail.explain(model, alike, "attn_lrp", 1, anatomy=BLOCKS)  # which needs no order of tokens
    assert at_pixels.provenance["level"] == "inputs"
    assert at_pixels.pixels is not None


def test_an_order_that_is_given_is_measured_for_each_one_that_is_given():
    class Ordered(Picture):
        def forward(self, pixel_values, order):
            self.order = order
            return super().forward(pixel_values)

    def maps(order):
        given = {"pixel_values": picture(), "order": order}
        return vitrail.explain(model, given, "gae", 1, anatomy=BLOCKS).scores

    model = built(Ordered)  # without positions, an order makes no difference
    assert_close(maps(torch.arange(16)), maps(torch.arange(16).flip(0)))
    assert_close(maps(torch.arange(16)), maps(torch.arange(16).roll(5)))


class Wired(Picture):
    """Three blocks, wired as the case says."""

    def __init__(self, wire):
        super().__init__()
        self.blocks, self.wire, self.beside = nn.ModuleList([Block() for _ in range(3)]), wire, Block()

    def forward(self, x):
        return self.head(self.wire(self, self.tokens(x)))


def _stacked(blocks, x):
    for block in blocks:
        x = block(x)
    return x


WIRES = {
    "reversed": lambda model, x: _stacked(reversed(model.blocks), x)[:, 0],
    "second first": lambda model, x: model.blocks[2](model.blocks[0](model.blocks[1](x)))[:, 0],
    "parallel": lambda model, x: sum(block(x) for block in model.blocks)[:, 0],
    "an encoder beside": lambda model, x: (_stacked(model.blocks, x) + model.beside(x))[:, 0],
    "patches of an early block": lambda model, x: (
        model.blocks[2](early := _stacked(model.blocks[:2], x))[:, 0] + early[:, 1:].mean(dim=1)
    ),
    "patches before the blocks": lambda model, x: _stacked(model.blocks, x)[:, 0] + x[:, 1:].mean(dim=1),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("method", WALKING)
def test_blocks_that_are_not_walked_one_after_the_other_are_refused(wire, method):
    with pytest.raises(SeamError, match="integrated_gradients"):
        vitrail.explain(built(lambda: Wired(WIRES[wire])), picture(), method, 1, anatomy=BLOCKS)


def test_the_same_token_may_be_read_behind_several_blocks():
    model = built(lambda: Wired(lambda model, x: x[:, 0] + model.blocks[0](x)[:, 0] + _stacked(model.blocks, x)[:, 0]))
    with pytest.raises(SeamError, match="attend once"):  # the first block is called twice
        vitrail.explain(model, picture(), "gae", 1, anatomy=BLOCKS)
    model.wire = lambda model, x: (
        (early := model.blocks[0](x))[:, 0] + _stacked(model.blocks[1:], early)[:, 0] + x[:, 0]
    )
    assert vitrail.explain(model, picture(), "gae", 1, anatomy=BLOCKS).scores.shape == (2, 16)


@pytest.mark.parametrize("method", [*WALKING, "attcat", "attn_lrp", "dix"])
@pytest.mark.parametrize("read", [lambda x: x[:, 0], lambda x: x[:, 1:].mean(dim=1)])
def test_blocks_behind_the_one_that_is_read_take_no_part(method, read):
    def wire(model, x):
        early = _stacked(model.blocks[:2], x)
        _stacked(model.blocks[2:], early)
        return read(early)

    longer, shorter = built(lambda: Wired(wire)), built(lambda: Wired(wire))
    del shorter.blocks[2]
    parts = Anatomy(blocks="blocks", output="proj", ffn_input="ffn", ffn_output="ffn", attention_norm="norm")
    found, expected = (vitrail.explain(m, picture(), method, 1, anatomy=parts).scores for m in (longer, shorter))
    assert_close(found, expected)


class Looked(nn.Module):
    """Words become vectors by a table that is not called with the ids."""

    def __init__(self, order):
        super().__init__()
        self.table, self.order = nn.Parameter(torch.randn(60, 16)), order
        self.blocks, self.head = nn.ModuleList([Block() for _ in range(2)]), nn.Linear(16, 5)

    def forward(self, input_ids):
        return self.head(_stacked(self.blocks, self.table[self.order(input_ids)])[:, 0])


def test_words_in_another_order_are_refused_where_no_table_of_words_is_called():
    ids = torch.tensor([[5, 9, 33, 21, 7, 12]])
    found = vitrail.explain(built(lambda: Looked(lambda ids: ids)), {"input_ids": ids}, "gae", 1, anatomy=BLOCKS)
    assert found.scores.shape == (1, 6)
    for order in (lambda ids: ids.flip(1), lambda ids: ids.sort(dim=1).values, lambda ids: ids.roll(1, dims=1)):
        with pytest.raises(SeamError, match="another word at place 0"):
            vitrail.explain(built(lambda order=order: Looked(order)), {"input_ids": ids}, "gae", 1, anatomy=BLOCKS)


def bert_of(cls="BertForSequenceClassification"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, vocab_size=50, num_labels=4
    )
    return getattr(transformers, cls)(config).double().eval()


def words(batch=2, length=7):
    return {"input_ids": torch.randint(3, 50, (batch, length), generator=torch.Generator().manual_seed(1))}


class Ensemble(nn.Module):
    """Two models whose answers are added."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
        config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=50)
        self.first, self.second = transformers.LlamaForCausalLM(config).double().eval(), bert_of()

    def forward(self, input_ids):
        return self.first(input_ids).logits[:, -1, :4] + self.second(input_ids).logits


class Compared(nn.Module):
    """A model that compares the samples of a batch."""

    def __init__(self):
        super().__init__()
        self.inner = bert_of()

    def forward(self, input_ids):
        logits = self.inner(input_ids).logits
        return (logits @ logits.T)[:, :2]


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (Ensemble, "no later block reads what block 1 gives, but the answer reads both"),
        (Compared, "depends on the tokens of others"),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_beside_the_blocks_or_across_samples_is_refused(make, seen, frozen):
    model = make().requires_grad_(not frozen)
    with pytest.raises(SeamError, match=seen):
        vitrail.explain(model, words(), "gae", 1)


def test_the_blocks_of_one_of_two_models_are_refused():
    with pytest.raises(SeamError, match="attention calls outside the blocks"):
        vitrail.explain(Ensemble(), words(), "gae", 1, anatomy=vitrail.Anatomy(blocks="first.model.layers"))


@pytest.mark.parametrize("moved", [0, 1])
def test_tokens_that_pass_blocks_by_arrive_at_the_same_tokens_or_are_refused(moved):
    model, kept = bert_of(), {}
    model.bert.encoder.layer[0].register_forward_pre_hook(lambda module, args: kept.update(x=args[0]))

    def add(module, args, out):
        skipped = kept["x"].roll(moved, dims=1)
        return out + skipped if isinstance(out, torch.Tensor) else (out[0] + skipped, *out[1:])

    model.bert.encoder.layer[2].register_forward_hook(add)
    if moved:
        with pytest.raises(SeamError, match="tokens that pass blocks by are in another order"):
            vitrail.explain(model, words(), "gae", 1)
    else:
        assert bool(vitrail.explain(model, words(), "gae", 1).scores.isfinite().all())


def test_rows_of_logits_that_are_not_the_tokens_are_refused():
    model = Ensemble().first
    with pytest.raises(TargetError, match="answers at 1 positions of 7 tokens"):
        vitrail.explain(model, {**words(), "logits_to_keep": 1}, "gae", 5)


class Worded(nn.Module):
    """A text model of no known family; a class whose `__init__` knows the model's own parts."""

    def __init__(self, block):
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(50, 16), nn.ModuleList([block, Block()]), nn.Linear(16, 4)

    def forward(self, input_ids):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def test_ids_made_in_inference_mode_are_explained_by_a_model_of_no_known_family():
    torch.manual_seed(0)
    model = Worded(Block()).double().eval()
    with torch.inference_mode():
        found = vitrail.explain(model, words(), "gae", 1)
    assert_close(found.scores, vitrail.explain(model, words(), "gae", 1).scores)


def test_a_class_built_around_a_model_is_explained_as_the_model_is():
    torch.manual_seed(0)
    inner = Worded(Block()).double().eval()

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner  # a closure over the model, which is not called in the forward pass

        def forward(self, input_ids):
            return self.inner(input_ids)

    around = vitrail.explain(Around(), words(), "gae", 1)
    assert_close(around.scores, vitrail.explain(inner, words(), "gae", 1).scores)


def test_a_forward_pass_without_autograd_is_refused_where_no_family_is_known():
    model = Worded(Block()).double().eval()
    model.forward = torch.no_grad()(model.forward)
    with pytest.raises(SeamError, match=r"torch\.no_grad inside the model"):
        vitrail.explain(model, words(), "gae", 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [5, 150, 197, 198, 4099])
def test_coded_gradients_find_the_row_that_each_position_feeds(count, dtype):
    place = torch.randn(count + 2, 3).to(dtype).requires_grad_()
    order = torch.randperm(count)
    made = place[order] * torch.tensor([1e-9, -3.0, 1e9], dtype=dtype)
    made = made.index_add(0, torch.tensor([0, count - 1]), place[[count, count]])
    rows = [(made[: count // 2], torch.arange(count // 2)[:, None]), (made, torch.arange(count)[:, None])]
    (found,) = sources(rows, [place], channels=1)
    assert found is not None
    assert_close(found[:count], order.argsort())
    assert found[count:].tolist() == [MIXED, NOWHERE]
