"""Small models drawn at random: a seed gives a recipe, a recipe gives a model and its inputs.

A recipe is a frozen dataclass. Its text is a line of Python that makes it again, with nothing that is as usual. What a
model of each recipe computes is written once more as plain loops in `random_references`.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, WORDS, CLASSES, LONGEST = 8, 40, 3, 9


@dataclass(frozen=True)
class Recipe:
    """What a model is made of.

    Args:
        seed: of its weights and inputs.
        form: how attention is written in all layers but the odd one.
        odd: how it is written in the odd layer, if there is one.
        at: which layer is the odd one: `first`, `middle` or `last`.
        causal: whether no token attends to those after it.
        order: how tokens are moved: before, between or inside blocks.
        readout: which tokens the head reads.
        norm: where the norms stand.
        block: what else is special about blocks.
        wrapper: what stands around the model, or comes out of it beside the logits.
        mask: how padding is given, if there is any.
    """

    seed: int = 0
    form: str = "fused"
    odd: str | None = None
    at: str = "last"
    layers: int = 3
    heads: int = 2
    length: int = 6
    batch: int = 2
    causal: bool = False
    order: str = "plain"
    readout: str = "mean"
    norm: str = "pre"
    block: str = "serial"
    wrapper: str = "plain"
    mask: str = "none"

    def __str__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Recipe({', '.join(changed)})"

    @property
    def forms(self) -> tuple[str, ...]:
        """How attention is written in each layer."""
        found = [self.form] * self.layers
        if self.odd is not None:
            found[{"first": 0, "middle": self.layers // 2, "last": self.layers - 1}[self.at]] = self.odd
        return tuple(found)


# Attention, in the ways people write it. Queries, keys and values are [b, h, n, d], and `seen` says which pairs of a
# query and a key may be seen, [b, 1, q, k]


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def hidden(scores: Tensor, seen: Tensor | None) -> Tensor:
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def probabilities(q: Tensor, k: Tensor, seen: Tensor | None) -> Tensor:
    return hidden(scaled(q, k), seen).softmax(dim=-1)


def fused(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def matmul(q, k, v, seen):
    return torch.matmul(probabilities(q, k, seen), v)


def einsum(q, k, v, seen):
    weights = hidden(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, seen).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def in_batch(seen: Tensor, heads: int) -> Tensor:
    return seen.expand(-1, heads, -1, -1).flatten(0, 1)


def bmm(q, k, v, seen):
    heads = q.shape[1]
    seen = None if seen is None else in_batch(seen, heads)
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) / q.shape[-1] ** 0.5
    return torch.bmm(F.softmax(hidden(scores, seen), dim=-1), v.flatten(0, 1)).unflatten(0, (-1, heads))


def baddbmm(q, k, v, seen):
    heads, n = q.shape[1], q.shape[2]
    added = torch.zeros(len(q) * heads, n, n, dtype=q.dtype)
    added = added if seen is None else hidden(added, in_batch(seen, heads))
    scores = torch.baddbmm(added, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1)).unflatten(0, (-1, heads))


def heads_first(q, k, v, seen):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    seen = None if seen is None else seen.transpose(0, 1)
    return (hidden(scaled(q, k), seen).softmax(-1) @ v).transpose(0, 1)


def heads_last(q, k, v, seen):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bqkh", q, k) * q.shape[-1] ** -0.5
    seen = None if seen is None else seen.permute(0, 2, 3, 1)
    return torch.einsum("bqkh,bkhd->bhqd", hidden(scores, seen).softmax(dim=2), v)


def keys_first(q, k, v, seen):
    seen = None if seen is None else seen.mT
    return hidden(scaled(k, q), seen).softmax(dim=-2).mT @ v


def log_exp(q, k, v, seen):
    return hidden(scaled(q, k), seen).log_softmax(dim=-1).exp() @ v


def in_parts(q, k, v, seen):
    scores = hidden(scaled(q, k), seen)
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return (powers / powers.sum(dim=-1, keepdim=True)) @ v


def sum_of_products(q, k, v, seen):
    return (probabilities(q, k, seen)[..., None] * v[:, :, None]).sum(dim=-2)


def class_row(q, k, v, seen):
    return probabilities(q, k, seen)[:, :, :1] @ v


def tensordot(q, k, v, seen):
    weights = probabilities(q, k, seen)
    pairs = zip(weights.flatten(0, 1), v.flatten(0, 1), strict=True)
    return torch.stack([torch.tensordot(a, x, dims=([1], [0])) for a, x in pairs]).unflatten(0, v.shape[:2])


def aten(q, k, v, seen):
    return torch.ops.aten._softmax(hidden(scaled(q, k), seen), -1, False) @ v  # noqa: FBT003


def normalised_later(q, k, v, seen):
    powers = hidden(scaled(q, k), seen).exp()
    return (powers @ v) / powers.sum(dim=-1, keepdim=True)


def key_chunks(q, k, v, seen):
    """Some keys at a time, with a running total."""
    total, found = 0.0, 0.0
    for some in torch.arange(k.shape[2]).split(2):
        powers = hidden(scaled(q, k[:, :, some]), None if seen is None else seen[..., some]).exp()
        total, found = total + powers.sum(dim=-1, keepdim=True), found + powers @ v[:, :, some]
    return found / total


def query_chunks(q, k, v, seen):
    parts = torch.arange(q.shape[2]).split(2)
    return torch.cat([matmul(q[:, :, i], k, v, None if seen is None else seen[:, :, i]) for i in parts], dim=2)


@functools.wraps(F.scaled_dot_product_attention)
def attend_quickly(*args, **kwargs):
    return torch._C._nn.scaled_dot_product_attention(*args, **kwargs)


def wrapped(q, k, v, seen):
    return attend_quickly(q, k, v, attn_mask=seen)


def _scripted(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / float(q.size(-1)) ** 0.5 + added
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.jit.script(_scripted)


def scripted(q, k, v, seen):
    added = torch.zeros(1, 1, 1, 1, dtype=q.dtype)
    return _compiled()(q, k, v, added if seen is None else hidden(added.expand(seen.shape), seen))


def row_by_row(q, k, v, seen):
    weights = probabilities(q, k, seen)
    maps = zip(weights.flatten(0, 1), v.flatten(0, 1), strict=True)
    return torch.stack([torch.stack([torch.mv(x.mT, row) for row in a]) for a, x in maps]).unflatten(0, v.shape[:2])


def head_by_head(q, k, v, seen):
    seen = None if seen is None else seen[:, 0]
    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    return torch.stack([hidden(scaled(a, b), seen).softmax(-1) @ c for a, b, c in heads], dim=1)


def softmin(q, k, v, seen):
    scores = -scaled(q, k)
    return F.softmin(scores if seen is None else scores.masked_fill(~seen, torch.inf), dim=-1) @ v


def shared_keys(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=seen, enable_gqa=True)


def vmapped(q, k, v, seen):
    seen = None if seen is None else seen[:, 0]
    one = lambda a, b, c: hidden(scaled(a, b), seen).softmax(-1) @ c  # noqa: E731
    return torch.func.vmap(one, in_dims=1, out_dims=1)(q, k, v)


class OwnAttention(torch.autograd.Function):
    """Attention with a backward pass of its own."""

    @staticmethod
    def forward(ctx, q, k, v, seen):
        weights = probabilities(q, k, seen)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, weights = ctx.saved_tensors
        of_map = weights * (gradient @ v.mT)
        of_scores = (of_map - weights * of_map.sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return of_scores @ k, of_scores.mT @ q, weights.mT @ gradient, None


def own_backward(q, k, v, seen):
    return OwnAttention.apply(q, k, v, seen)


def counts(q: Tensor, seen: Tensor | None) -> Tensor | int:
    """How many keys each query may see."""
    return q.shape[2] if seen is None else seen.sum(dim=-1, keepdim=True)


def sigmoid(q, k, v, seen):
    return hidden(scaled(q, k), seen).sigmoid() / counts(q, seen) @ v


def relu(q, k, v, seen):
    return F.relu(hidden(scaled(q, k), seen)) / counts(q, seen) @ v


def linear(q, k, v, seen):
    """A product of features of queries and keys, in which no map is ever formed."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if seen is None:
        return (q @ (k.mT @ v)) / (q @ k.sum(dim=2)[..., None])
    weights = q @ k.mT * seen
    return (weights @ v) / weights.sum(dim=-1, keepdim=True)


def convolution(q, k, v, seen):
    """Each token with its two neighbours."""
    n, near = v.shape[2], F.pad(v, (0, 0, 1, 1))
    return 0.5 * near[:, :, :n] + 0.3 * near[:, :, 1 : n + 1] + 0.2 * near[:, :, 2:]


def running_mean(q, k, v, seen):
    """The mean of each token and all before it; no query takes part."""
    return v.cumsum(dim=2) / torch.arange(1, v.shape[2] + 1, dtype=v.dtype)[:, None]


def fourier(q, k, v, seen):
    return torch.fft.fft(v, dim=2).real * v.shape[2] ** -0.5


SOFTMAX: dict[str, Callable[..., Tensor]] = {
    one.__name__: one
    for one in (
        fused, matmul, einsum, bmm, baddbmm, heads_first, heads_last, keys_first, log_exp, in_parts, sum_of_products,
        class_row, tensordot, aten, normalised_later, key_chunks, query_chunks, wrapped, scripted, row_by_row,
        head_by_head, softmin, shared_keys, vmapped, own_backward,
    )
}  # fmt: skip
"""All these compute softmax(q k) v."""
WEIGHTED: dict[str, Callable[..., Tensor]] = {one.__name__: one for one in (sigmoid, relu)}
"""These have a map that no softmax made."""
UNMAPPED: dict[str, Callable[..., Tensor]] = {one.__name__: one for one in (linear, convolution, running_mean, fourier)}
"""These mix tokens without a map."""
MULTIHEAD = "multihead"
FORMS = (*SOFTMAX, MULTIHEAD, *WEIGHTED, *UNMAPPED)
ATTENTION: dict[str, Callable[..., Tensor]] = {**SOFTMAX, **WEIGHTED, **UNMAPPED}


class Attention(nn.Module):
    """One form of attention between its projections."""

    def __init__(self, form: str, heads: int) -> None:
        super().__init__()
        self.form, self.heads = form, heads
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(ATTENTION[self.form](q, k, v, seen).transpose(1, 2).flatten(2))


class Multihead(nn.Module):
    """The same by `nn.MultiheadAttention`."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.inner = heads, nn.MultiheadAttention(WIDTH, heads, batch_first=True)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        mask = None if seen is None else ~in_batch(seen.expand(-1, -1, x.shape[1], -1), self.heads)
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


class Block(nn.Module):
    """Attention and a feed-forward part, each with a skip connection."""

    def __init__(self, form: str, recipe: Recipe, *, detached: bool) -> None:
        super().__init__()
        self.norm, self.kind, self.detached = recipe.norm, recipe.block, detached
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.third, self.fourth = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = Multihead(recipe.heads) if form == MULTIHEAD else Attention(form, recipe.heads)
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.scale = nn.Parameter(torch.rand(2, WIDTH) + 0.3)

    def attention(self, x: Tensor, seen: Tensor | None) -> Tensor:
        given = self.first(x) if self.norm in ("pre", "sandwich") else x
        out = self.attend(given, seen)
        out = self.third(out) if self.norm == "sandwich" else out
        out = out * self.scale[0] if self.kind == "layer_scale" else out
        return out.detach() if self.detached else out

    def feed(self, x: Tensor) -> Tensor:
        given = self.second(x) if self.norm in ("pre", "sandwich") else x
        out = self.down(F.gelu(self.up(given)))
        out = self.fourth(out) if self.norm == "sandwich" else out
        return out * self.scale[1] if self.kind == "layer_scale" else out

    def forward(self, x: Tensor, seen: Tensor | None, samples: int | None = None) -> Tensor:
        """States are [b, n, d]; where the number of samples is given, [n, b, d] or [b n, d]."""
        if samples is None:
            return self.whole(x, seen)
        if x.ndim == 2:
            return self.whole(x.unflatten(0, (samples, -1)), seen).flatten(0, 1)
        return self.whole(x.transpose(0, 1), seen).transpose(0, 1)

    def whole(self, x: Tensor, seen: Tensor | None) -> Tensor:
        if self.kind == "parallel":
            return x + self.attention(x, seen) + self.feed(x)
        if self.kind == "in_place":
            x = x.clone()
            x += self.attention(x, seen)
            x += self.feed(x)
            return x
        out = self.attention(x, seen)
        of_class_row = out.shape[1] < x.shape[1]
        x = torch.cat([x[:, :1] + out, x[:, 1:]], dim=1) if of_class_row else x + out
        x = self.first(x) if self.norm == "post" else x
        if self.kind == "attention_only":
            return x
        x = x + self.feed(x)
        return self.second(x) if self.norm == "post" else x


# Orders of tokens. Those that depend on the content look at the first word


def is_odd(ids: Tensor) -> Tensor:
    return ids[:, :1] % 2 == 1


def turned(n: int) -> Tensor:
    return torch.arange(n).flip(0)


def by_content(x: Tensor, ids: Tensor) -> Tensor:
    """The tokens gathered in the order that each sample asks for."""
    places = torch.where(is_odd(ids), turned(x.shape[1]), torch.arange(x.shape[1]))
    return x.gather(1, places.view(*places.shape, *[1] * (x.ndim - 2)).expand_as(x))


def shuffled(n: int) -> Tensor:
    return torch.cat([torch.arange(1, n, 2), torch.arange(0, n, 2)])


def by_matrix(x: Tensor) -> Tensor:
    return torch.eye(x.shape[1], dtype=x.dtype)[shuffled(x.shape[1])] @ x


BETWEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "flip_between": lambda x, ids: x.flip(1),
    "roll": lambda x, ids: x.roll(1, dims=1),
    "permutation_matrix": lambda x, ids: by_matrix(x) if x.is_floating_point() else x[:, shuffled(x.shape[1])],
    "gather_by_content": by_content,
    "where_by_content": lambda x, ids: torch.where(is_odd(ids).view(-1, *[1] * (x.ndim - 1)), x.flip(1), x),
    "if_flip_between": lambda x, ids: x.flip(1) if bool(is_odd(ids)[0, 0]) else x,
}
"""What is done before the last block."""
BEFORE = {
    "flip_states": lambda x, ids: x.flip(1),
    "if_flip_states": lambda x, ids: x.flip(1) if bool(is_odd(ids)[0, 0]) else x,
}
"""What is done between the table and the first block."""
OF_IDS = {
    "flip_ids": lambda ids: ids.flip(1),
    "if_flip_ids": lambda ids: ids.flip(1) if bool(is_odd(ids)[0, 0]) else ids,
}
"""What is done before the table."""
ORDERS = ("plain", *OF_IDS, *BEFORE, *BETWEEN, "windows", "tokens_first", "flat")
CONTENT = ("gather_by_content", "where_by_content", "if_flip_between", "if_flip_states", "if_flip_ids")
PAIR = 2
"""Tokens in a window."""


# Readouts. `real` says which columns are words, [b, n]


def first_real(real: Tensor) -> Tensor:
    return real.int().argmax(dim=1)


def last_real(real: Tensor) -> Tensor:
    return real.shape[1] - 1 - real.flip(1).int().argmax(dim=1)


def at(x: Tensor, places: Tensor) -> Tensor:
    return x[torch.arange(len(x)), places]


@dataclass(frozen=True)
class Last:
    """What a head may read: the last states, which of them are words, the states a block earlier, and the ids."""

    x: Tensor
    real: Tensor
    early: Tensor | None
    ids: Tensor


def read_first(model: "RandomModel", last: Last) -> Tensor:
    return at(last.x, first_real(last.real))


def read_last(model: "RandomModel", last: Last) -> Tensor:
    """Read the last column, as models that pad on the left do, or the last word."""
    return last.x[:, -1] if model.recipe.mask in ("none", "left") else at(last.x, last_real(last.real))


def read_mean(model: "RandomModel", last: Last) -> Tensor:
    share = last.real[..., None].to(last.x) / last.real.sum(dim=1)[:, None, None]
    return (last.x * share).sum(dim=1)


def read_max(model: "RandomModel", last: Last) -> Tensor:
    return last.x.masked_fill(~last.real[..., None], -torch.inf).amax(dim=1)


def read_marker(model: "RandomModel", last: Last) -> Tensor:
    return at(last.x, last.ids.argmax(dim=1))


def read_one_hot(model: "RandomModel", last: Last) -> Tensor:
    return (last.x * F.one_hot(last.ids.argmax(dim=1), last.x.shape[1])[..., None]).sum(dim=1)


def read_gated(model: "RandomModel", last: Last) -> Tensor:
    scores = model.gate(last.x).masked_fill(~last.real[..., None], -torch.inf)
    return (scores.softmax(dim=1) * last.x).sum(dim=1)


def read_by_query(model: "RandomModel", last: Last) -> Tensor:
    """Pool the tokens by the attention of a learned query."""
    key, value = model.pool(last.x).chunk(2, dim=-1)
    seen = None if model.recipe.mask == "none" else last.real[:, None, None]
    asked = model.query.expand(len(key), 1, WIDTH)[:, None]
    return F.scaled_dot_product_attention(asked, key[:, None], value[:, None], attn_mask=seen)[:, 0, 0]


def read_at_exit(model: "RandomModel", last: Last) -> Tensor:
    assert last.early is not None
    places = first_real(last.real)
    return torch.where(is_odd(last.ids), at(last.early, places), at(last.x, places))


def read_both(model: "RandomModel", last: Last) -> Tensor:
    assert last.early is not None
    places = first_real(last.real)
    return at(last.x, places) + 0.3 * is_odd(last.ids).to(last.x) * at(last.early, places)


READERS: dict[str, Callable[["RandomModel", Last], Tensor]] = {
    "first": read_first, "last": read_last, "mean": read_mean, "max": read_max, "marker_index": read_marker,
    "marker_one_hot": read_one_hot, "query": read_by_query, "gated": read_gated, "exit_break": read_first,
    "exit_where": read_at_exit, "class_token": read_first, "shortcut": read_both,
}  # fmt: skip
READOUTS = (*READERS, "two_heads")
EXITS = ("exit_break", "exit_where")


class RandomModel(nn.Module):
    """A model of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.table = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LONGEST + 1, WIDTH))
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH))
        cut = recipe.layers // 2 if recipe.block == "detached" else None
        self.blocks = nn.ModuleList(Block(form, recipe, detached=i == cut) for i, form in enumerate(recipe.forms))
        self.head, self.other = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
        self.query, self.pool = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, 2 * WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("log", torch.zeros(600_000 if recipe.wrapper == "large_buffer" else 1))

    # Entering

    def embed(self, ids: Tensor, real: Tensor) -> Tensor:
        """Word vectors with positions that count words alone."""
        x = self.table(ids) + self.places[real.int().cumsum(dim=1).clamp(min=1) - 1]
        if self.recipe.readout == "class_token":
            x = torch.cat([self.start.expand(len(x), -1, -1), x], dim=1)
        return x

    def visible(self, real: Tensor) -> Tensor | None:
        """Which pairs of a query and a key may be seen; every token sees itself, so that no row is empty."""
        n = real.shape[1]
        if self.recipe.mask == "none" and not self.recipe.causal:
            return None
        seen = real[:, None, None, :].expand(-1, -1, n, -1)
        seen = seen & torch.ones(n, n, dtype=torch.bool).tril() if self.recipe.causal else seen
        return seen | torch.eye(n, dtype=torch.bool) if self.recipe.mask != "none" else seen

    def real(self, ids: Tensor, attention_mask: Tensor | None, lengths: Tensor | None) -> Tensor:
        if self.recipe.mask == "own":
            return ids != 0
        if lengths is not None:
            return torch.arange(ids.shape[1]) < lengths[:, None]
        if attention_mask is None:
            return torch.ones_like(ids, dtype=torch.bool)
        if self.recipe.mask == "additive":
            return attention_mask[:, 0, 0] == 0
        return attention_mask.bool()

    # Through the blocks

    def run(self, block: Block, x: Tensor, real: Tensor) -> Tensor:
        """One block, on states in the form that the order asks for."""
        seen, order = self.visible(real), self.recipe.order
        if order == "windows":
            pairs = x.unflatten(1, (-1, PAIR)).flatten(0, 1)
            seen = None if seen is None else self.visible(real.unflatten(1, (-1, PAIR)).flatten(0, 1))
            return block(pairs, seen).unflatten(0, (len(x), -1)).flatten(1, 2)
        if order == "flat":
            return block(x.flatten(0, 1), seen, samples=len(x)).unflatten(0, x.shape[:2])
        if order == "tokens_first":
            return block(x.transpose(0, 1), seen, samples=len(x)).transpose(0, 1)
        return block(x, seen)

    def states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The last states with the columns that are words, and the states two blocks deep."""
        order = self.recipe.order
        place = OF_IDS.get(order, lambda x: x)
        if order == "if_flip_ids" and not bool(is_odd(ids)[0, 0]):
            place = lambda x: x  # noqa: E731
        x, real = self.embed(place(ids), place(real)), place(real)
        if self.recipe.readout == "class_token":
            real = F.pad(real, (1, 0), value=True)
        if order in BEFORE:
            x, real = BEFORE[order](x, ids), BEFORE[order](real, ids)
        early = None
        for i, block in enumerate(self.blocks):
            if i == len(self.blocks) - 1 and order in BETWEEN:
                x, real = BETWEEN[order](x, ids), BETWEEN[order](real, ids)
            x = self.run(block, x, real)
            if i == len(self.blocks) - 2:
                early = x
                if self.recipe.readout == "exit_break" and bool(is_odd(ids)[0, 0]):
                    break
        return x, real, early

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, lengths: Tensor | None = None) -> Any:
        self._write(input_ids)
        x, real, early = self.states(input_ids, self.real(input_ids, attention_mask, lengths))
        if self.recipe.wrapper == "coupled_states":  # as a norm over the batch does
            x = x - 0.5 * x.mean(dim=0, keepdim=True)
        if self.recipe.readout == "two_heads":
            features = at(x, first_real(real))
            logits = (self.head(features) + self.other(at(x, last_real(real)))) / 2
        else:
            features = READERS[self.recipe.readout](self, Last(x, real, early, input_ids))
            logits = self.head(features)
        return OUTPUTS.get(self.recipe.wrapper, lambda features, logits: logits)(features, logits)

    def _write(self, ids: Tensor) -> None:
        """What some models keep of every call."""
        kind = self.recipe.wrapper
        if kind == "counter":
            self.calls += 1
        if kind == "large_buffer":
            self.log[: len(ids)] = ids[:, 0].to(self.log)
        if kind == "counter_parameter":
            self.gate.weight.data += 1
        if kind == "fixed_batch" and len(ids) != self.recipe.batch:
            raise ValueError(f"this model was built for batches of {self.recipe.batch}, not {len(ids)}")


OUTPUTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda features, logits: {"logits": logits},
    "logits_features": lambda features, logits: (logits, features),
    "features_logits": lambda features, logits: (features, logits),
    "loss_logits": lambda features, logits: {"loss": logits.logsumexp(dim=1).mean(), "logits": logits},
    "list": lambda features, logits: [logits],
    "coupled_logits": lambda features, logits: logits - logits.mean(dim=0, keepdim=True),
}
WRAPPERS = (
    "plain", *OUTPUTS, "coupled_states", "data_parallel", "nested", "counter", "large_buffer", "counter_parameter",
    "fixed_batch",
)  # fmt: skip
COUPLED = ("coupled_logits", "coupled_states")
NORMS = ("pre", "post", "sandwich", "none")
BLOCKS = ("serial", "parallel", "layer_scale", "in_place", "attention_only", "detached")
MASKS = ("none", "right", "left", "bool", "float", "additive", "own", "lengths")


# Drawing


def allowed(recipe: Recipe) -> bool:  # noqa: C901  (one line for each pair of choices that do not go together)
    """Return True if the parts of a recipe make a model that means one thing, whatever the batch or the padding."""
    padded, forms = recipe.mask != "none", recipe.forms
    content = recipe.order in CONTENT or recipe.readout in (*EXITS, "shortcut")
    moved = recipe.order not in ("plain", "tokens_first", "flat")
    if any(form in UNMAPPED and form != "linear" for form in forms) and (padded or recipe.causal):
        return False
    if "class_row" in forms:
        fits = forms[:-1].count("class_row") == 0 and recipe.readout in ("first", "class_token")
        if not fits or recipe.order == "windows" or recipe.mask == "left" or recipe.causal:
            return False
        if recipe.block not in ("serial", "layer_scale"):
            return False
    if recipe.causal and recipe.readout in ("first", "class_token", *EXITS, "shortcut"):
        return False  # the first token sees itself alone
    if recipe.readout == "class_token" and recipe.order not in ("plain", "flip_ids", "tokens_first", "flat"):
        return False
    if recipe.readout == "class_token" and recipe.mask != "none":
        return False
    if (recipe.order.startswith("if_") or recipe.readout == "exit_break") and recipe.batch > 1:
        return False
    if recipe.readout in (*EXITS, "shortcut") and (recipe.order in BETWEEN or recipe.order == "windows"):
        return False
    if content and recipe.mask == "left":
        return False
    if padded and recipe.order in ("roll", "permutation_matrix", "windows"):
        return False
    if padded and moved and recipe.readout.startswith("marker"):
        return False
    if recipe.mask == "left" and moved and recipe.readout == "last":
        return False
    if recipe.order == "windows" and recipe.length % PAIR:
        return False
    if recipe.norm == "post" and recipe.block in ("parallel", "in_place"):
        return False
    if recipe.wrapper in COUPLED and recipe.batch == 1:
        return False
    return recipe.wrapper != "counter_parameter" or recipe.readout != "gated"


USUAL = {"form": 0.5, "odd": 0.5, "order": 0.5, "readout": 0.4, "norm": 0.6, "block": 0.6, "wrapper": 0.6, "mask": 0.6}
"""How often a part of a recipe is as usual."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "form": (*(form for form in SOFTMAX if form != "class_row"), MULTIHEAD),
    "odd": FORMS,
    "order": ORDERS,
    "readout": READOUTS,
    "norm": NORMS,
    "block": BLOCKS,
    "wrapper": WRAPPERS,
    "mask": MASKS,
}


def draw(seed: int) -> Recipe:
    """Draw a recipe that is allowed. The same seed draws the same."""
    source = random.Random(seed)
    while True:
        recipe = Recipe(
            seed=seed,
            at=source.choice(("first", "middle", "last", "last")),
            layers=source.choice((2, 3)),
            heads=source.choice((1, 2, 4)),
            length=source.choice((5, 6, 7)),
            batch=source.choice((1, 2, 3)),
            causal=source.random() < 0.25,
        )
        for name, among in CHOICES.items():
            if source.random() >= USUAL[name]:
                recipe = replace(recipe, **{name: source.choice(among)})
        if allowed(recipe):
            return recipe


def build(recipe: Recipe) -> nn.Module:
    """Make the model of a recipe, in float64 and without dropout."""
    torch.manual_seed(recipe.seed)
    model = RandomModel(recipe)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.ndim == 2 and ("mix" in name or "in_proj" in name):
                x *= 2  # maps that are far from uniform
    model = model.double().eval()
    if recipe.wrapper == "data_parallel":
        return nn.DataParallel(model)
    return Nested(model) if recipe.wrapper == "nested" else model


class Nested(nn.Module):
    """A model inside of another that does nothing else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, **more: Tensor) -> Tensor:
        return self.inner(input_ids, **more)


@dataclass(frozen=True)
class Given:
    """Inputs of a recipe.

    Args:
        texts: the words of each sample.
        kwargs: what the model is called with.
        columns: which columns hold the words, [b, n].
    """

    texts: tuple[tuple[int, ...], ...]
    kwargs: dict[str, Tensor]
    columns: Tensor


def inputs(recipe: Recipe, call: int) -> Given:
    """Make the inputs of a call. Those of the second have the same shapes, but ask for another order or exit."""
    source = random.Random(1000 * recipe.seed + call)
    texts = []
    for i in range(recipe.batch):
        padding = 0 if recipe.mask == "none" else (i + call) % 3 if recipe.batch > 1 else 1
        words = source.sample(range(2, WORDS), recipe.length - padding)
        if words[0] % 2 != (i + call) % 2:
            words[0] = next(x for x in range(2, WORDS) if x % 2 != words[0] % 2 and x not in words)
        texts.append(tuple(words))
    ids = torch.zeros(recipe.batch, recipe.length, dtype=torch.int64)
    columns = torch.zeros_like(ids, dtype=torch.bool)
    for i, words in enumerate(texts):
        place = slice(recipe.length - len(words), None) if recipe.mask == "left" else slice(len(words))
        ids[i, place], columns[i, place] = torch.tensor(words), True
    return Given(tuple(texts), {"input_ids": ids, **_mask(recipe.mask, columns)}, columns)


def _mask(kind: str, columns: Tensor) -> dict[str, Tensor]:
    """The padding, as a model of this kind is told of it."""
    if kind in ("none", "own"):
        return {}
    if kind == "lengths":
        return {"lengths": columns.sum(dim=1)}
    if kind == "additive":
        hidden = torch.zeros(columns.shape, dtype=torch.float64).masked_fill(~columns, -1e9)
        return {"attention_mask": hidden[:, None, None]}
    types = {"bool": torch.bool, "float": torch.float64}
    return {"attention_mask": columns.to(types.get(kind, torch.int64))}
