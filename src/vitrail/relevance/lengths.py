"""Lengths and angles of token vectors before and after a sub-layer: by a Triton kernel on CUDA, else by torch.

Operands are in the model's precision, sums in float32 at least. Written as torch functions, a layer takes some forty
small operations and a widened copy of every operand; here it is one kernel for all heads, one for all rows of the
stream, and one for the weights.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.recording import widen
from vitrail.relevance import fused
from vitrail.relevance.fused import DTYPES

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


@cache
def _kernels() -> Any:  # noqa: ANN401
    """The kernels, imported when first used: Triton is not on every machine."""
    from vitrail.relevance import length_kernels

    return length_kernels


def _block(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _by_kernel(*operands: Tensor, width: int) -> bool:
    """Whether a kernel can do this: operands on CUDA, in a precision and of a size that it takes."""
    first = operands[0]
    fits = first.is_cuda and first.numel() > 0 and width <= WIDEST_ROW and all(x.dtype in DTYPES for x in operands)
    return fits and fused.refusal(device="cuda", dtype=first.dtype, widths=(1,)) is None


def row_lengths(x: States, pair: tuple[States, States] | None = None) -> tuple[Float[Tensor, "b t"], Change | None]:
    """The lengths of the vectors x, and of a pair of vectors of each token how the second stands to the first."""
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
    _kernels().rows[(batch * tokens,)](
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
    _kernels().heads[(-(-tokens // TOKENS), batch * heads)](
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
    """The softmax of the cosines over all real tokens, apart in each head."""
    return cosine.masked_fill(~valid[:, None], -torch.inf).softmax(dim=2)


def weighed_by_kernel(change: Change, valid: Bool[Tensor, "b t"], *, use: tuple[bool, bool]) -> Weights:
    """The same by a kernel, one program for each head."""
    length, product = change.length.contiguous(), change.product.contiguous()
    batch, heads, tokens = length.shape
    out, block = torch.empty_like(length), _block(tokens)
    _kernels().weights[(batch * heads,)](
        length, product, change.original.contiguous(), valid.contiguous(), out, heads, tokens,
        TINY=torch.finfo(torch.float32).tiny, LENGTHS=use[0], DIRECTIONS=use[1], BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out
