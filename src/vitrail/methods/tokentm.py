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

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.layers import Early
from vitrail.capture.recording import Layer, widen
from vitrail.errors import MissingTensorError
from vitrail.methods.options import check_choice
from vitrail.relevance import Result, Walk, positive, pull
from vitrail.relevance.dense import on_matrix_units, wide_product
from vitrail.relevance.fused import DTYPES, refusal, triton_kernels
from vitrail.relevance.walk import STARTS
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
    """How a sub-layer transforms the vectors of tokens, head by head.

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
    """Whether a kernel can do this: operands on CUDA, in a precision and of a size that it takes."""
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
    """How each head changes the vectors of tokens, from its values alone.

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
    """How much longer the transformed vector is."""
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
    """What the feed-forward part is given and what it adds: as one head."""
    before, added = state_of(layer, name), state_of(layer, "ffn_added")
    if scale and layer.ffn_scale is not None:
        added = widen(added) * layer.ffn_scale
    return before, added


def _normed(layer: Layer) -> str:
    """What attention reads, after its norm; in post-norm models that is the stream."""
    return "entering" if layer.stream.attention_normed is None else "attention_normed"


EMBEDDINGS: dict[str, tuple[Callable[[Layer], str], str, set[str]]] = {
    "stream": (lambda layer: "entering", "ffn_entering", {"ffn_entering"}),
    "normed": (_normed, "ffn_normed", {"attention_normed", "ffn_normed"}),
}
"""Which state E is, before attention and before the feed-forward part, and which states that takes."""
BLOCKS: dict[str, Callable[[Layer], bool]] = {
    "all": lambda layer: True,
    "first": lambda layer: layer.index == 0,
    "last": lambda layer: layer.is_last,
}
INITIAL: dict[str, Callable[["Changes"], Tensor | float]] = {
    "lengths": lambda first: first.entering,
    "identity": lambda first: 1.0,
}


@dataclass(frozen=True)
class Changes:
    """What is read of a block: how long its inputs are, and how its two parts transform them.

    Args:
        rows: what a norm between the output projection and the stream multiplies each token's row by.
    """

    entering: Float[Tensor, "b t"]
    attention: Change
    ffn: Change | None
    rows: Float[Tensor, "b t"] | None = None


@dataclass(frozen=True)
class TokenTMState:
    """The row of C so far, its part that skip connections alone carried, and the weights of the layers seen."""

    relevance: Float[Tensor, "b q"]
    own: Float[Tensor, "b q"]
    weights: tuple[Float[Tensor, "b t"], ...] = field(default=())


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
) -> Walk:
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
    before_attention, before_ffn, states = check_choice("embedding", embedding, EMBEDDINGS)
    takes_part = check_choice("blocks", blocks, BLOCKS)
    origin = check_choice("initial", initial, INITIAL)
    use = (length, direction)
    aggregate = blocks == "all"
    ffn = ffn and aggregate

    def read(layer: Layer) -> Changes:
        pair = ffn_pair(layer, before_ffn, scale=layer_scale) if ffn else None
        entering, ffn_change = row_lengths(state_of(layer, "entering"), pair)
        name = before_attention(layer)
        known = entering if name == "entering" else None
        attention = attention_change(layer, name, bias=value_bias, scale=layer_scale, original=known)
        return Changes(entering, attention, ffn_change, layer.output_rows)

    early = Early(read, frozenset({"entering", "output_weight", *states, *({"ffn_added"} if ffn else ())}))

    def step(state: TokenTMState, layer: Layer) -> TokenTMState:
        if layer.pooling:  # a pooling query reads the tokens; its transformation is not known
            pulled = pull(layer, state.relevance, positive).mean(dim=1)
            return TokenTMState(pulled, torch.zeros_like(pulled))
        changes = early(layer)
        weights = weighed(changes.attention, layer.valid, use=use)
        rows = torch.ones_like(weights[:, 0]) if changes.rows is None or not length else changes.rows.to(weights.dtype)
        seen = (weights.mean(dim=1) * rows, *state.weights)
        if not takes_part(layer):
            return TokenTMState(state.relevance, state.own, seen)
        if not aggregate:
            return TokenTMState((pull(layer, row(layer) * rows, positive) * weights).mean(dim=1), 0 * state.own, seen)
        growth = torch.ones_like(state.own)
        if changes.ffn is not None:  # Eq. 16: U = I + diag(w)
            growth = 1 + weighed(changes.ffn, layer.valid, use=use)[:, 0]
        relevance = state.relevance * growth
        pulled = (pull(layer, relevance * rows, positive) * weights).mean(dim=1)  # Eqs. 13 and 14
        return TokenTMState(relevance + pulled, state.own * growth, seen)

    def finish(state: TokenTMState, first: Layer) -> Result:
        """Eqs. 17 to 19: the row of C started from the input vectors' lengths."""
        start = origin(early(first))
        return Result(state.relevance * start, own=state.own * start, layers=torch.stack(state.weights, dim=1))

    row = check_choice("readout", readout, STARTS)
    start = lambda last: TokenTMState(row(last), row(last))  # noqa: E731
    check_choice("scalar", scalar, SCALARS)
    measured = value_bias and layer_scale and aggregate and embedding == "stream"  # on several streams
    return Walk(
        start,
        step,
        finish,
        needs=early.needs | {"output_grad"},
        scalar=scalar,
        early=early,
        across=partial(across, use=use) if measured else None,
        within=partial(growth_of, use=use) if ffn else None,
        from_lengths=initial == "lengths",
    )


def across(
    rows: Float[Tensor, "r q"], layer: Layer, *, use: tuple[bool, bool]
) -> tuple[Float[Tensor, "r q"], Float[Tensor, "r k"]]:
    """Eqs. 13 and 14 on one of several streams: what an attention call gives to its keys."""
    if layer.stream.entering is None:  # a pooling query reads the tokens; its transformation is not known
        return rows, pull(layer, rows, positive).mean(dim=1)
    weights = weighed(attention_change(layer, "entering", bias=True, scale=True), layer.valid, use=use)
    weights = torch.where(layer.valid[:, None], weights, 0)  # padding, and rows of windows that belong to no token
    factor = layer.output_rows if use[0] else None
    asked = rows if factor is None else rows * factor.to(rows)
    return rows, (pull(layer, asked, positive) * weights).mean(dim=1)


def growth_of(layer: Layer, *, use: tuple[bool, bool]) -> Float[Tensor, "r t"]:
    """Eq. 16 on one of several streams: the diagonal of `I + diag(w)`."""
    pair = ffn_pair(layer, "ffn_entering", scale=True)
    change = row_lengths(pair[0], pair)[1]
    assert change is not None
    weights = weighed(change, layer.valid, use=use)[:, 0]
    return 1 + torch.where(layer.valid, weights, 0)
