"""Models that cut their graph in places, write into their tensors, or meet torch's own limits: right, or refused."""

import functools

import pytest
import torch
import torch.nn.functional as F
from odd_attention import Block, ViT, images, vit
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close

import vitrail
from vitrail.errors import CutGraphError, InputError, NoAttentionError, RuleError, SeamError, VitrailError

GRADIENT = ("gae", "attn_lrp", "integrated_gradients", "auto")


class DetachedAttention(Block):
    def forward(self, x):
        x = x + self.attend(x).detach()
        return x + self.ffn(x)


class DataOfAttention(Block):
    def forward(self, x):
        x = x + self.attend(x).data
        return x + self.ffn(x)


class DetachedFeedForward(Block):
    def forward(self, x):
        x = x + self.attend(x)
        return x + self.ffn(x).detach()


class DetachedStream(Block):
    def forward(self, x):
        x = x.detach() + self.attend(x)
        return x + self.ffn(x)


class DetachedResult(Block):
    def forward(self, x):
        return super().forward(x).detach()


class DetachedInput(Block):
    def forward(self, x):
        return super().forward(x.detach())


def fused_and_detached(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).detach()


CUT = {
    "attention": DetachedAttention,
    "data": DataOfAttention,
    "fused": lambda: Block(fused_and_detached),
    "queries": lambda: Block(lambda q, k, v: (q.detach() @ k.mT).softmax(-1) @ v),
    "keys": lambda: Block(lambda q, k, v: (q @ k.detach().mT).softmax(-1) @ v),
    "values": lambda: Block(lambda q, k, v: (q @ k.mT).softmax(-1) @ v.detach()),
    "maps": lambda: Block(lambda q, k, v: (q @ k.mT).softmax(-1).detach() @ v),
    "feed-forward": DetachedFeedForward,
    "stream": DetachedStream,
    "result": DetachedResult,
    "input": DetachedInput,
}


def with_block(make, place=1, **options):
    torch.manual_seed(1)
    blocks = [make() if index == place else Block() for index in range(3)]
    return ViT(blocks, **options).double().eval()


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("what", CUT)
def test_what_a_block_detaches_is_an_error_that_says_where(what, place):
    with pytest.raises(CutGraphError, match=rf"block {place} of 3 .*detach"):
        vitrail.explain(with_block(CUT[what], place), images(), "gae", 1)


@pytest.mark.parametrize("method", GRADIENT)
def test_no_gradient_method_leaves_out_what_is_detached(method):
    with pytest.raises(CutGraphError, match="block 1 of 3"):
        vitrail.explain(with_block(DetachedAttention), images(), method, 1)


@pytest.mark.parametrize("what", ["attention", "result", "values", "feed-forward"])
def test_rollout_needs_no_gradient_and_is_that_of_the_whole_model(what):
    plain = {"values": lambda: Block(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)}.get(what, Block)
    found, expected = (vitrail.explain(with_block(make), images(), "rollout", 1).scores for make in (CUT[what], plain))
    assert_close(found, expected)


@pytest.mark.parametrize("what", ["attention", "maps", "queries"])
def test_a_model_that_detaches_in_several_streams_is_refused(what):
    def class_query(q, k, v):
        return torch.cat([(q[:, :, :1] @ k.mT).softmax(-1) @ v, torch.zeros_like(v)[:, :, 1:]], dim=2)

    blocks = [Block(), Block(class_query), CUT[what]()]
    with pytest.raises(CutGraphError, match="detach"):
        vitrail.explain(ViT(blocks).double().eval(), images(), "gae", 1)


def shifted(q, k, v):
    """The maximum that a softmax is shifted by changes no gradient."""
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("method", ["gae", "integrated_gradients"])
def test_what_is_detached_and_changes_no_gradient_is_no_cut(method):
    found, expected = (vitrail.explain(vit(form, form, form), images(), method, 1).scores for form in (shifted, None))
    assert_close(found, expected)


class Copied(nn.LayerNorm):
    """A norm that keeps a copy of what it reads, so that the stream may be written into."""

    def forward(self, x):
        return super().forward(x.clone())


class Writing(Block):
    """Both sub-layers are added in place."""

    def __init__(self):
        super().__init__()
        self.norm = Copied(16)
        self.ffn[0] = Copied(16)

    def forward(self, x):
        x += self.attend(x)
        x += self.ffn(x)
        return x


class Added(Writing):
    def forward(self, x):
        x = x + self.attend(x)
        return x + self.ffn(x)


class ScaledInPlace(Writing):
    """The queries are a view of what one projection gives."""

    def split(self, x):
        b, t, d = x.shape
        both = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = both[0], both[1], both[2]
        q *= 0.5
        return q, k, v


class Scaled(Added):
    def split(self, x):
        q, k, v = super().split(x)
        return q * 0.5, k, v


@pytest.mark.parametrize("method", ["gae", "rollout", "attn_lrp", "integrated_gradients", "attcat", "auto"])
@pytest.mark.parametrize(("writing", "plain"), [(Writing, Added), (ScaledInPlace, Scaled)])
def test_blocks_that_write_into_the_stream_are_explained_as_if_they_did_not(writing, plain, method):
    def model(kind):
        torch.manual_seed(1)
        return ViT([kind() for _ in range(3)]).double().eval()

    model(writing)(images()).sum().backward()  # it can be trained
    found, expected = (vitrail.explain(model(kind), images(), method, 1) for kind in (writing, plain))
    assert found.method == expected.method
    assert_close(found.scores, expected.scores)


def test_memory_low_runs_blocks_again_that_write_into_the_stream():
    def model(kind):
        torch.manual_seed(1)
        made = ViT([kind() for _ in range(3)])
        for block in made.blocks:
            block.form = F.scaled_dot_product_attention
        return made.double().eval()

    found, expected = (vitrail.explain(model(kind), images(), "gae", 1, memory="low") for kind in (Writing, Added))
    assert_close(found.scores, expected.scores)


class WritesInput(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x -= 0.5
        return self.inner(x)


@pytest.mark.parametrize("method", ["gae", "integrated_gradients", "auto"])
def test_a_model_may_write_into_what_it_is_given(method):
    x = images()
    found = vitrail.explain(WritesInput(vit(None, None, None)), x.clone(), method, 1).scores
    if method == "gae":
        assert_close(found, vitrail.explain(vit(None, None, None), x - 0.5, method, 1).scores)
    assert bool(found.any())


class Overwrites(Block):
    """Autograd cannot differentiate it: the norm needs what is written into."""

    forward = Writing.forward


@pytest.mark.parametrize("method", GRADIENT)
def test_what_autograd_cannot_differentiate_is_an_error_that_says_so(method):
    with pytest.raises(CutGraphError, match="writes into a tensor that the gradient needs"):
        vitrail.explain(with_block(Overwrites), images(), method, 1)


class Recurrence(nn.Module):
    """A running sum that is written token by token, over values that are overwritten."""

    def __init__(self):
        super().__init__()
        self.embed, self.keys, self.values = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        keys, values = self.keys(x), self.values(x)
        out, total = torch.zeros_like(values), torch.zeros_like(values[:, 0])
        for i in range(values.shape[1]):
            total = total + keys[:, i].exp() * values[:, i]
            out[:, i] = total
            values[:, i] *= 2
        return self.head(out[:, -1])


@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp", "input_x_gradient", "integrated_gradients"])
def test_what_is_written_over_under_rules_is_an_error_that_says_so(method):
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]])
    with pytest.raises(CutGraphError, match="writes into a tensor that the gradient needs"):
        vitrail.explain(Recurrence().double().eval(), {"input_ids": ids}, method, 1)


@pytest.mark.parametrize("method", GRADIENT)
def test_flex_attention_without_a_backward_pass_is_an_error_that_says_so(method):
    with pytest.raises(CutGraphError, match="flex_attention has no backward pass"):
        vitrail.explain(vit(None, flex_attention, None), images(), method, 1)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("method", ["gae", "auto", "leave_one_out"])
def test_nested_inputs_are_refused(method, named):
    ragged = torch.nested.nested_tensor([torch.randn(3, 12, 12), torch.randn(3, 12, 8)])
    with pytest.raises(VitrailError, match="nested"):
        vitrail.explain(vit(None, None, None), {"images": ragged} if named else ragged, method, 1)


def test_a_patched_attention_function_is_followed(monkeypatch):
    expected = vitrail.explain(vit(*[F.scaled_dot_product_attention] * 3), images(), "gae", 1).scores
    own = F.scaled_dot_product_attention

    @functools.wraps(own)
    def patched(*args, **kwargs):
        return own(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", patched)
    model = vit(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v)] * 3)
    assert_close(vitrail.explain(model, images(), "gae", 1).scores, expected)


@pytest.mark.parametrize("own", [True, False])
def test_a_hook_that_explains_within_an_explanation_is_an_error_and_no_endless_recursion(own):
    model = vit(None, None, None)
    other = model if own else vit(None, None, None)
    model.blocks[1].register_forward_hook(lambda *_: vitrail.explain(other, images(), "gae", 1) and None)
    with pytest.raises(InputError, match="a hook on the model"):
        vitrail.explain(model, images(), "gae", 1)
    assert vitrail.explain(vit(None, None, None), images(), "gae", 1).method == "gae"  # nothing is left behind


def test_a_hook_may_explain_where_nothing_else_does():
    model, found = vit(None, None, None), []
    other = vit(None, None, None)
    model.register_forward_hook(lambda *_: found.append(vitrail.explain(other, images(), "gae", 1).scores))
    model(images())
    assert_close(found[0], vitrail.explain(other, images(), "gae", 1).scores)


def in_parts(q, k, v):
    powers = (q @ k.mT).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def class_query(q, k, v):
    return torch.cat([(q[:, :, :1] @ k.mT).softmax(-1) @ v, torch.zeros_like(v)[:, :, 1:]], dim=2)


@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp"])
@pytest.mark.parametrize("forms", [(in_parts, None, None), (None, None, in_parts), (in_parts, class_query, None)])
def test_a_softmax_in_parts_in_some_layers_has_no_rule_either(forms, method):
    with pytest.raises(RuleError, match="softmax of its attention in parts"):
        vitrail.explain(vit(*forms), images(), method, 1)


def test_the_default_explains_a_softmax_in_parts_in_some_layers_by_its_maps():
    found = vitrail.explain(vit(None, in_parts, None), images(), target=1)
    assert_close(found.scores, vitrail.explain(vit(None, None, None), images(), "gae", 1).scores)
    assert "in parts" in found.provenance["default"]


def test_a_head_of_zeros_is_named_among_the_reasons_for_no_gradient():
    model = vit(None, class_query, None)
    nn.init.zeros_(model.head.weight)
    with pytest.raises(VitrailError, match="a head before its training"):
        vitrail.explain(model, images(), "gae", 1)


class ValuesOfPairs(Block):
    """Every pair of tokens has a value of its own, as in graph transformers with features of edges."""

    def attend(self, x):
        q, k, v = self.split(x)
        steps = torch.arange(x.shape[1], dtype=x.dtype)
        pairs = v[:, :, None] + (steps[:, None] - steps)[..., None]
        out = torch.einsum("bhij,bhijd->bhid", (q @ k.mT).softmax(-1), pairs)
        return self.proj(out.transpose(1, 2).flatten(2))


def test_a_softmax_that_is_applied_to_values_of_pairs_is_named():
    model = ViT([ValuesOfPairs() for _ in range(2)]).double().eval()
    with pytest.raises(NoAttentionError, match=r"softmax .* of shapes \(2, 2, 10, 10\), .*every pair of tokens"):
        vitrail.explain(model, images(), "gae", 1)


class Merging(ViT):
    """Four learned queries that all samples share merge the tokens half-way."""

    def __init__(self):
        super().__init__([Block() for _ in range(3)])
        self.queries = nn.Parameter(torch.randn(4, 16))

    def forward(self, images):
        x = self.blocks[0](self.embed(images).flatten(2).mT)
        x = (self.queries @ x.mT).softmax(-1) @ x
        return self.head(self.blocks[2](self.blocks[1](x)).mean(dim=1))


def test_learned_queries_that_samples_share_are_named():
    with pytest.raises(SeamError, match=r"product of tensors of \(4, 16\) and \(2, 16, 9\), one of which all samples"):
        vitrail.explain(Merging().double().eval(), images(), "gae", 1)
