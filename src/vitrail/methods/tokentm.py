"""TokenTM, also called VTranM: attention weighted by how each token's vector is transformed.

Wu et al., "Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer", CVPR 2024,
arXiv:2403.14552. Paper -> code: E -> `embedding`, E~ -> the transformed vector, L -> `length_ratio` (Eq. 9), NECC ->
`normalised_cosine` (Eq. 11), W -> `weighed` (Eq. 12), the readout's row of C -> relevance. The transformed vectors, one
of d channels per head and token, are never formed: their lengths and products follow from the values and D x D Gram
matrices. Where a norm stands between the output projection and the stream, its statistics are those of the pass: token
i receives `s_i W v_j` of token j, with s_i one over the deviation at i. The direction does not depend on s_i, so L and
NECC are those of `W v_j`, and s_i scales row i of the map.

Lengths and products are summed in float32 at least. On CUDA a Triton kernel computes them for all heads, one for all
rows of the stream, and one the weights: as torch functions, a layer takes some forty small operations and a widened
copy of every operand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer, widen
from vitrail.capture.recording.layers import Early
from vitrail.errors import MissingTensorError
from vitrail.methods.options import check_choice
from vitrail.relevance import LayerReader, Result, Walk, positive, pull
from vitrail.relevance.dense import on_matrix_units, wide_product
from vitrail.relevance.fused import DTYPES, refusal, triton_kernels
from vitrail.relevance.walk import STARTS, Walked
from vitrail.targets import SCALARS

Weights = Float[Tensor, "b h t"]
States = Float[Tensor, "b t m"]
WIDEST_HEAD = 128
WIDEST_ROW = 16_384
"""Channels of a token, or tokens of a head, that one program holds at once."""
TOKENS = 32
"""Tokens of a head that one program takes."""


@dataclass(frozen=True)
class Change:
    """The change of the vectors of tokens by a sub-layer, head by head.

    Args:
        original: the length of the vector before.
        length: the length of the transformed vector.
        product: the scalar product of the two.
    """

    original: Float[Tensor, "b t"]
    length: Weights
    product: Weights


def _block(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _by_kernel(*operands: Tensor, width: int) -> bool:
    """Return True if a kernel can do this: operands on CUDA, in a precision and of a size that it takes."""
    first = operands[0]
    fits = first.is_cuda and first.numel() > 0 and width <= WIDEST_ROW and all(x.dtype in DTYPES for x in operands)
    return fits and refusal(device="cuda", dtype=first.dtype, widths=(1,)) is None


def row_lengths(x: States, pair: tuple[States, States] | None = None) -> tuple[Float[Tensor, "b t"], Change | None]:
    """The lengths of the vectors x, and for a pair of vectors of each token the change from the first to the second."""
    operands = (x, *(pair or ()))
    packed = all(one.is_contiguous() and one.shape == x.shape for one in operands)
    if packed and _by_kernel(*operands, width=x.shape[-1]):
        return rows_by_kernel(x, pair)
    if pair is None:
        return widen(x).norm(dim=2), None
    before, after = widen(pair[0]), widen(pair[1])
    change = Change(before.norm(dim=2), after.norm(dim=2)[:, None], (before * after).sum(dim=2)[:, None])
    return widen(x).norm(dim=2), change


def rows_by_kernel(x: States, pair: tuple[States, States] | None) -> tuple[Float[Tensor, "b t"], Change | None]:
    """The same by a kernel, one program for each token."""
    batch, tokens, width = x.shape
    found = torch.empty(4, batch, tokens, device=x.device, dtype=torch.float32)
    y, z = pair or (x, x)
    block = _block(width)
    triton_kernels().token_lengths[(batch * tokens,)](
        x, y, z, *found, width, PAIR=pair is not None, BLOCK=block, num_warps=4 if block <= 2048 else 8
    )
    return found[0], None if pair is None else Change(found[1], found[2][:, None], found[3][:, None])


def head_change(
    original: Float[Tensor, "b t"],
    value: Float[Tensor, "b g t d"],
    back: Float[Tensor, "b t c"],
    gram: Float[Tensor, "h d d"],
) -> Change:
    """Return the change of the vectors of tokens by each head, from its values alone.

    Args:
        value: of each key head.
        back: what comes back to the heads' channels of the vectors before, by the transposed output projection.
        gram: the products of the columns of each head's part of the output projection.
    """
    heads, width = gram.shape[:2]
    fits = width <= WIDEST_HEAD and value.stride(3) == 1 and back.is_contiguous() and gram.dtype is torch.float32
    if fits and _by_kernel(value, back, width=width):
        return heads_by_kernel(original, value, back, gram.contiguous())
    values = widen(value).repeat_interleave(heads // value.shape[1], dim=1)
    squared = ((values @ gram.to(values.dtype)) * values).sum(dim=3)
    each = widen(back).to(values.dtype).unflatten(2, (heads, width)).transpose(1, 2)
    return Change(original, squared.clamp(min=0).sqrt(), (each * values).sum(dim=3))


def heads_by_kernel(original: Tensor, value: Tensor, back: Tensor, gram: Tensor) -> Change:
    """The same by a kernel, one program for some tokens of a head."""
    batch, groups, tokens, width = value.shape
    heads = len(gram)
    found = torch.empty(2, batch, heads, tokens, device=value.device, dtype=torch.float32)
    triton_kernels().head_changes[(-(-tokens // TOKENS), batch * heads)](
        value, back, gram, *found, *value.stride()[:3], heads, heads // groups, tokens, width,
        BLOCK_T=TOKENS, BLOCK_D=_block(width), num_warps=4,
    )  # fmt: skip
    return Change(original, *found)


def weighed(change: Change, valid: Bool[Tensor, "b t"], *, use: tuple[bool, bool]) -> Weights:
    """Length ratio times the softmax of the cosines over real tokens, each only if it is used.

    Args:
        use: whether lengths and directions take part.
    """
    numbers = (change.length, change.product, change.original)
    if all(x.dtype is torch.float32 for x in numbers) and _by_kernel(*numbers, width=change.length.shape[2]):
        return weighed_by_kernel(change, valid, use=use)
    weights = torch.ones_like(change.length)
    if use[0]:
        weights = weights * length_ratio(change.length, change.original)
    if use[1]:
        tiny = torch.finfo(change.length.dtype).tiny
        cosine = change.product / (change.length * change.original[:, None]).clamp(min=tiny)
        weights = weights * normalised_cosine(cosine, valid)
    return weights


def length_ratio(length: Weights, original: Float[Tensor, "b t"]) -> Weights:
    """Return the ratio of the lengths of the transformed and the original vector."""
    return length / original[:, None].clamp(min=torch.finfo(length.dtype).tiny)


def normalised_cosine(cosine: Weights, valid: Bool[Tensor, "b t"]) -> Weights:
    """The softmax of the cosines over all real tokens, for each head."""
    return cosine.masked_fill(~valid[:, None], -torch.inf).softmax(dim=2)


def weighed_by_kernel(change: Change, valid: Bool[Tensor, "b t"], *, use: tuple[bool, bool]) -> Weights:
    """The same by a kernel, one program for each head."""
    length, product = change.length.contiguous(), change.product.contiguous()
    batch, heads, tokens = length.shape
    out, block = torch.empty_like(length), _block(tokens)
    triton_kernels().change_weights[(batch * heads,)](
        length, product, change.original.contiguous(), valid.contiguous(), out, heads, tokens,
        TINY=torch.finfo(torch.float32).tiny, LENGTHS=use[0], DIRECTIONS=use[1], BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out


def values_of(layer: Layer, *, bias: bool) -> Float[Tensor, "b g t d"]:
    """The value vectors of every key head, with or without the bias of their projection."""
    value = layer.get("value")
    if bias:
        return value
    if layer.value_bias is None:  # a projection without bias, unless it is not known whether it has one
        layer.check_known("value_bias")
        return value
    values = widen(value)
    # Of a fused query-key-value bias, the values' part stands last.
    part = layer.value_bias[-value.shape[1] * value.shape[3] :].to(values.dtype)
    return values - rearrange(part, "(g d) -> g 1 d", g=value.shape[1])


def state_of(layer: Layer, name: str) -> Float[Tensor, "b t m"]:
    """A recorded state in the model's own precision, or an error that names it."""
    found = getattr(layer.stream, name)
    return layer.state(name) if found is None else found


def gram_of(weight: Float[Tensor, "m c"], heads: int) -> Float[Tensor, "h d e"]:
    """The products of the columns of each head's part of the output projection."""
    slices = rearrange(weight, "m (h d) -> h m d", h=heads)
    if on_matrix_units(weight):
        return torch.bmm(slices.mT, slices, out_dtype=torch.float32)
    return einsum(widen(slices), widen(slices), "h m d, h m e -> h d e")


def attention_change(
    layer: Layer, name: str, *, bias: bool, scale: bool, original: Float[Tensor, "b t"] | None = None
) -> Change:
    """Attention: each head transforms a token by its values and its slice of the output projection.

    Args:
        name: the state that is transformed.
        original: the length of that state, if it is known already.
    """
    embedding, value = state_of(layer, name), values_of(layer, bias=bias)
    weight = layer.get("output_weight")
    if scale and layer.attention_scale is not None:
        weight = widen(layer.attention_scale)[:, None] * weight
    heads = value.shape[1] if layer.query is None else layer.query.shape[1]
    width = value.shape[3]
    if weight.shape != (embedding.shape[2], heads * width):
        raise MissingTensorError(
            f"the output projection of block {layer.index} is {tuple(weight.shape)}, but {heads} heads of {width} "
            f"channels into a stream of {embedding.shape[2]} need {(embedding.shape[2], heads * width)}."
        )
    original = row_lengths(embedding)[0] if original is None else original
    return head_change(original, value, wide_product(embedding, weight), gram_of(weight, heads))


def ffn_pair(layer: Layer, name: str, *, scale: bool) -> tuple[Float[Tensor, "b t m"], Float[Tensor, "b t m"]]:
    """Return the input of the feed-forward part and its update, as one head."""
    before, added = state_of(layer, name), state_of(layer, "ffn_added")
    if scale and layer.ffn_scale is not None:
        added = widen(added) * layer.ffn_scale
    return before, added


def _normed(layer: Layer) -> str:
    """Return the name of the state that attention reads, after its norm; in post-norm models that is the stream."""
    return "entering" if layer.stream.attention_normed is None else "attention_normed"


EMBEDDINGS: dict[str, tuple[Callable[[Layer], str], str, frozenset[str]]] = {
    "stream": (lambda layer: "entering", "ffn_entering", frozenset({"ffn_entering"})),
    "normed": (_normed, "ffn_normed", frozenset({"attention_normed", "ffn_normed"})),
}
"""Which state E is, before attention and before the feed-forward part, and which states that takes."""
BLOCKS: dict[str, Callable[[Layer], bool]] = {
    "all": lambda layer: True,
    "first": lambda layer: layer.index == 0,
    "last": lambda layer: layer.is_last,
}
INITIAL = {"lengths": True, "identity": False}
"""Whether the result is multiplied by the lengths of the input vectors."""


@dataclass(frozen=True)
class Changes:
    """The lengths of a layer's inputs, and the changes of them by its sub-layers.

    Args:
        attention: None where a query pools tokens, whose transformation is not known.
        rows: what a norm between the output projection and the stream multiplies each token's row by.
    """

    entering: Float[Tensor, "b t"] | None = None
    attention: Change | None = None
    ffn: Change | None = None
    rows: Float[Tensor, "b q"] | None = None


def build(  # noqa: PLR0913  (one switch per row of the paper's ablation and per open choice)
    *,
    length: bool = True,
    direction: bool = True,
    ffn: bool = True,
    value_bias: bool = True,
    layer_scale: bool = True,
    initial: str = "lengths",
    blocks: str = "all",
    embedding: str = "stream",
    scalar: str = "probability",
    readout: str = "equal",
) -> Walk | LayerReader:
    """Attention and feed-forward layers, aggregated with each token's transformation weight.

    Args:
        length: weigh by the length ratio of transformed to original vector.
        direction: weigh by the normalised exponential cosine (NECC).
        ffn: let the feed-forward layers take part.
        value_bias: count the value projection's bias into the transformed vector.
        layer_scale: multiply transformed vectors by layer scale, where a model has it.
        initial: start from the `lengths` of the input vectors or from the `identity`.
        blocks: aggregate `all`, or read the one map of the `first` or the `last` block (the paper's baseline).
        embedding: compare with the residual `stream`, or with what the sub-layer reads (`normed`).
        scalar: differentiate the `probability` (paper) or the `logit`.
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    takes_part = check_choice("blocks", blocks, BLOCKS)
    multiplies = check_choice("initial", initial, INITIAL)
    row = check_choice("readout", readout, STARTS)
    check_choice("scalar", scalar, SCALARS)
    aggregate = blocks == "all"
    ffn = ffn and aggregate
    parts = ChangesRead(*check_choice("embedding", embedding, EMBEDDINGS), value_bias, layer_scale, ffn)
    early = Early(parts, parts.needs)
    weights = TokenWeights(early, (length, direction))
    lengths = partial(entering_lengths, early) if multiplies else None
    common = {"needs": early.needs | {"output_grad"}, "scalar": scalar, "early": early}
    if not aggregate:
        return _one_block(weights, takes_part, row, lengths, common)
    several = value_bias and layer_scale and embedding == "stream"
    within = weights.growth if ffn else None
    return Walk(weights.step, row, start_from_lengths, within=within, lengths=lengths, shown=weights.of_tokens,
                several=several, **common)  # fmt: skip


def start_from_lengths(walked: Walked) -> Result:
    """Eqs. 17 to 19: the row of C started from the input vectors' lengths, if they are asked for."""
    scores, own = walked.scores, walked.own
    if walked.lengths is not None:
        scores = scores * walked.lengths
        own = None if own is None else own * walked.lengths
    return Result(scores, own=own, layers=torch.stack(walked.shown, dim=1) if walked.shown else None)


@dataclass(frozen=True)
class ChangesRead:
    """Reads how a layer transforms its tokens.

    Args:
        before_attention: the name of the state before attention.
        before_ffn: the name of the state before the feed-forward part.
        states: all states that this takes.
        bias, scale: whether the bias of the values and layer scale count.
        ffn: whether the feed-forward part takes part.
    """

    before_attention: Callable[[Layer], str]
    before_ffn: str
    states: frozenset[str]
    bias: bool
    scale: bool
    ffn: bool

    @property
    def needs(self) -> frozenset[str]:
        """The states that are read."""
        return self.states | {"entering", "output_weight"} | ({"ffn_added"} if self.ffn else set())

    def __call__(self, layer: Layer) -> Changes:
        """Read a block, or one of its sub-layers."""
        pair = ffn_pair(layer, self.before_ffn, scale=self.scale) if self.ffn and layer.feeds_forward else None
        if not layer.attends:
            assert pair is not None
            return Changes(ffn=row_lengths(pair[0], pair)[1])
        if layer.cross and layer.stream.entering is None:
            return Changes()
        entering, ffn = row_lengths(state_of(layer, "entering"), pair)
        name = self.before_attention(layer)
        known = entering if name == "entering" else None
        attention = attention_change(layer, name, bias=self.bias, scale=self.scale, original=known)
        return Changes(entering, attention, ffn, layer.output_rows)


def entering_lengths(early: Early, layer: Layer) -> Float[Tensor, "b t"]:
    """Return the lengths of the vectors that enter a layer."""
    lengths = changes_of(layer, early).entering
    assert lengths is not None
    return lengths


def changes_of(layer: Layer, early: Early) -> Changes:
    """Return what is read of a layer, read once."""
    return layer.remember(early, lambda: early(layer))


@dataclass(frozen=True)
class TokenWeights:
    """The transformation weights of layers.

    Args:
        early: reads how a layer transforms its tokens.
        use: whether lengths and directions take part.
    """

    early: Early
    use: tuple[bool, bool]

    def __call__(self, layer: Layer) -> Weights:
        """Eq. 12: the weights of a layer's tokens by head, computed once."""
        return layer.remember(self, lambda: self._of(layer))

    def _of(self, layer: Layer) -> Weights:
        changes = changes_of(layer, self.early)
        assert changes.attention is not None
        found = weighed(changes.attention, layer.valid, use=self.use)
        # Where tokens are numbered: padding, and rows of windows that belong to no token.
        return torch.where(layer.valid[:, None], found, 0) if layer.cross else found

    def asked(self, rows: Float[Tensor, "b q"], layer: Layer) -> Float[Tensor, "b q"]:
        """Multiply the rows that ask by what a norm behind the output projection multiplies them by."""
        factor = changes_of(layer, self.early).rows if self.use[0] else None
        return rows if factor is None else rows * factor.to(rows)

    def step(self, rows: Float[Tensor, "b q"], layer: Layer) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b k"]]:
        """Eqs. 13 and 14; a query that pools tokens reads them as they are."""
        if layer.pooling or changes_of(layer, self.early).attention is None:
            return rows, pull(layer, rows, positive).mean(dim=1)
        return rows, (pull(layer, self.asked(rows, layer), positive) * self(layer)).mean(dim=1)

    def growth(self, layer: Layer) -> Float[Tensor, "b t"]:
        """Eq. 16: the diagonal of U = I + diag(w)."""
        changes = changes_of(layer, self.early)
        assert changes.ffn is not None
        found = weighed(changes.ffn, layer.valid, use=self.use)[:, 0]
        return 1 + (found if layer.attends else torch.where(layer.valid, found, 0))

    def of_tokens(self, layer: Layer) -> Float[Tensor, "b t"]:
        """VTranM, Fig. 1: the mean over heads."""
        weights = self(layer).mean(dim=1)
        return self.asked(weights, layer)


def _one_block(
    weights: TokenWeights,
    takes_part: Callable[[Layer], bool],
    row: Callable[[Layer], Float[Tensor, "b q"]],
    lengths: Callable[[Layer], Tensor] | None,
    common: Mapping[str, Any],
) -> LayerReader:
    """The paper's baseline: the map of one block, without aggregation."""

    def step(state: OneBlock, layer: Layer) -> OneBlock:
        if layer.pooling:
            return OneBlock(pull(layer, state.map, positive).mean(dim=1))
        shown = (weights.of_tokens(layer), *state.shown)
        if not takes_part(layer):
            return OneBlock(state.map, shown)
        return OneBlock((pull(layer, weights.asked(row(layer), layer), positive) * weights(layer)).mean(dim=1), shown)

    def finish(state: OneBlock, first: Layer) -> Result:
        scores = state.map if lengths is None else state.map * lengths(first)
        return Result(scores, layers=torch.stack(state.shown, dim=1))

    return LayerReader(step, lambda last: OneBlock(row(last)), finish, **common)


@dataclass(frozen=True)
class OneBlock:
    """The map so far, and the weights of the layers seen."""

    map: Float[Tensor, "b t"]
    shown: tuple[Float[Tensor, "b t"], ...] = ()
