"""What is measured on a model: where tokens come from, whether rows are tokens, what the prediction reads."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from tiny_models import DECODER, MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import Anatomy, targets
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


class Flipped(Block):
    """What attention gives is added to the tokens in reverse."""

    def attend(self, x):
        return super().attend(x).flip(1)


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


@pytest.mark.parametrize("block", [Windows, BatchWindows, Shuffled, ShuffledKeys, Packed, Convolved, Flipped])
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
    with pytest.raises(SeamError, match="attention calls outside the blocks"):
        vitrail.explain(model, {"input_ids": ids}, "gae", targets.logit(5, position=2))


class TwoTexts(nn.Module):
    """Two encoders, of which only the first is found."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.words, self.head = nn.Embedding(60, 16), nn.Linear(16, 5)
        self.first, self.second = (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) for _ in range(2))

    def forward(self, input_ids):
        x = self.words(input_ids)
        return self.head(self.second(torch.cat([self.first(x), x], dim=1)).mean(dim=1))


def test_a_second_encoder_on_top_of_the_first_is_not_ignored():
    with pytest.raises(SeamError, match="attention calls outside the blocks"):
        vitrail.explain(built(TwoTexts), {"input_ids": torch.randint(3, 60, (2, 6))}, "gae", 1)


def test_a_target_that_reads_nothing_is_an_error():
    with pytest.raises(TargetError, match="zero at every token"):
        vitrail.explain(built(Picture), picture(), "gae", lambda logits: logits[:, 0] * 0, anatomy=BLOCKS)


def test_structure_is_measured_once(monkeypatch):
    from vitrail import measure

    model, inputs, made = tiny("hf_bert"), MODELS["hf_bert"].inputs(), []
    own = measure._measured
    monkeypatch.setattr(measure, "_measured", lambda *args: made.append(1) or own(*args))
    for method in ("gae", "rollout", "attcat"):
        vitrail.explain(model, inputs, method)
    assert len(made) <= 1
