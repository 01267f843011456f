"""One attention call: its operands and its result, as the model has them and as a `Layer` has them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.torch_private import SAVED_LOGSUMEXP, fused_attention, saving_hooks
from vitrail.errors import SeamError


@dataclass(frozen=True)
class AttentionCall:
    """The operands and the result of one attention call, as the model computed them.

    Fused calls carry `query`, `key`, `value` and `output`, with shapes `[b, h, t, d]`, and no
    `weights`. Hand-written calls carry the `weights` after the softmax (`[b, h, q, k]` or
    `[b*h, q, k]`), what entered the softmax, and whatever of the operands could be followed.

    Args:
        by_hand: whether the model writes the call out, so that what it adds to the scores is not known.
        plain: whether the scores are `scale * query @ key^T`, plus at most a bias or mask; always so in fused calls.
        no_query: why a hand-written call has no one query, where it has none.
        keys: which keys are left of those that the softmax was over, from the first to before the last; None for all.
        in_parts: whether the softmax is written as powers of e over their sum, or as e to a log-softmax.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    output: Tensor | None
    weights: Tensor | None = None
    softmax_input: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    scale: float = 1.0
    by_hand: bool = False
    plain: bool = True
    no_query: str = ""
    keys: tuple[int, int] | None = None
    in_parts: bool = False
    logsumexp: Tensor | None = None  # of the scaled scores `[b, h, q]`, where the kernel that ran has kept it
    owner: str = ""  # the name of the module that made the call


def read_sdpa(  # noqa: PLR0913  (the signature is torch's)
    output: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> AttentionCall:
    """The call that `F.scaled_dot_product_attention` made with these arguments."""
    return AttentionCall(
        query=query,
        key=key,
        value=value,
        output=output,
        mask=attn_mask,
        causal=is_causal,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        logsumexp=None if output is None else kept_logsumexp(output, query),
    )


def kept_logsumexp(output: Tensor, query: Tensor) -> Tensor | None:
    """Return the log of the softmax's denominator, `[b, h, q]`, that a fused kernel kept for its backward pass."""
    if saving_hooks() is not None:  # a checkpointed region would run again for it, here and now
        return None
    kept = next((x for name in SAVED_LOGSUMEXP if (x := getattr(output.grad_fn, name, None)) is not None), None)
    # Under autocast the kernel saw other numbers than the query that was intercepted.
    if kept is None or query.ndim != 4 or kept.dtype is not torch.float32 or output.dtype is not query.dtype:
        return None
    kept = kept.detach()
    if kept.ndim == 4 and kept.shape[-1] == 1:  # cuDNN keeps a last axis
        kept = kept.squeeze(-1)
    kept = kept[..., : query.shape[-2]]  # memory-efficient attention rounds the length up
    return kept if kept.shape == query.shape[:-1] else None


def call_shape(call: AttentionCall) -> tuple[int, int]:
    """Return the numbers of queries and keys of a call."""
    if call.weights is not None:
        return call.weights.shape[-2], call.weights.shape[-1]
    assert call.query is not None
    assert call.key is not None
    return call.query.shape[-2], call.key.shape[-2]


def call_dtype(call: AttentionCall) -> torch.dtype:
    """The dtype a call was computed in."""
    tensor = call.weights if call.weights is not None else call.query
    assert tensor is not None
    return tensor.dtype


def as_heads(x: Tensor | None, batch: int) -> Tensor | None:
    """An operand as `[b, h, t, d]`, without the graph."""
    if x is None:
        return None
    x = x.detach()
    if x.ndim == 3:
        x = x.view(batch, -1, *x.shape[1:])
    if x.shape[0] not in (1, batch):
        raise SeamError(
            f"an attention call has batch {x.shape[0]} where the inputs have {batch}: attention over "
            "windows or packed sequences cannot be walked token by token."
        )
    return x if x.shape[0] == batch else x.expand(batch, -1, -1, -1)


def gradient_as_heads(gradient: Tensor | None, of: Tensor | None, batch: int) -> Tensor | None:
    """An operand's gradient as `[b, h, t, d]`; None if samples share the operand, so that it is the sum of theirs."""
    shared = of is not None and of.ndim == 4 and of.shape[0] != batch
    return None if shared else as_heads(gradient, batch)


def gradient_of_map(gradient: Tensor, weights: Tensor, batch: int) -> Tensor:
    """The gradient of a map that the model computed itself as `[b, h, q, k]`."""
    found = gradient_as_heads(gradient, weights, batch)
    if found is None:
        raise SeamError(
            f"all {batch} samples share one attention map of shape {tuple(weights.shape)}, so its gradient is the sum "
            "of theirs. Explain one sample at a time."
        )
    return found


def as_mask(mask: Tensor, batch: int) -> Tensor:
    """A mask as `[b, h, q, k]`, where each of the first three axes may be one."""
    mask = mask.detach()
    if mask.ndim == 3 and mask.shape[0] > 1 and mask.shape[0] % batch == 0:  # samples and heads together
        return mask.view(batch, -1, *mask.shape[1:])
    return mask[(None,) * (4 - mask.ndim)]


OPERANDS = ("query", "key", "value", "output", "weights", "softmax_input")
"""What enters a call and what it gives, by the names of `AttentionCall` and of `Layer`."""


def operands_of(
    call: AttentionCall, count: int, with_heads: Callable[[Tensor, int], Tensor | None], mask: Tensor | None
) -> dict[str, Any]:
    """Return what entered an attention call and what it gave, by the names of `Layer`.

    Args:
        count: the number of rows of tokens, such as samples.
        with_heads: makes `[rows, heads, tokens, channels]` of an operand and the number of rows, as `as_heads` does.
        mask: the mask of the call as `[rows, heads, queries, keys]`, where each of the first three axes may be one.
    """
    found = {name: None if (x := getattr(call, name)) is None else with_heads(x, count) for name in OPERANDS}
    flat = call.query is None or call.query.ndim != 4  # heads are folded into the rows
    return {
        **found,
        "mask": mask,
        "causal": call.causal,
        "logsumexp": None if call.logsumexp is None or flat else call.logsumexp.expand(count, -1, -1),
        "scale": call.scale,
        "by_hand": call.by_hand,
        "plain": call.plain,
    }


def allowed_keys(
    mask: Tensor | None, size: tuple[int, int], *, causal: bool, device: torch.device, first_row: int = 0
) -> Tensor | None:
    """Return the keys that each query may see, as booleans that broadcast to `[b, h, q, k]`; None if all.

    Args:
        size: how many queries and keys there are.
        first_row: the place of the first of these queries.
    """
    if causal:
        return torch.ones(size, dtype=torch.bool, device=device).tril(first_row)
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        return mask
    # Frameworks write "masked" as -inf or as a number near the lowest the dtype holds.
    return mask > torch.finfo(mask.dtype).min / 2


FIRST = ("input|self",)
PAIR = ("input|self", "other|mat2|tensor2|tensor")
SIGNATURES: dict[Callable[..., Any], tuple[str, ...]] = {
    **dict.fromkeys(
        (
            torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm, torch.add, Tensor.add, Tensor.add_, torch.sub,
            Tensor.sub, Tensor.sub_, torch.subtract, Tensor.subtract, Tensor.subtract_, torch.rsub, torch.mul,
            torch.multiply, Tensor.mul, Tensor.multiply, Tensor.mul_, torch.div, Tensor.div, Tensor.div_, torch.divide,
            Tensor.divide, torch.true_divide, Tensor.true_divide,
        ),
        PAIR,
    ),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_), ("input|self", "batch1", "batch2")),
    **dict.fromkeys((torch.addmm, Tensor.addmm), ("input|self", "mat1", "mat2")),
    **dict.fromkeys((F.linear, F.conv2d, torch.conv2d), ("input", "weight", "bias")),
    **dict.fromkeys((F.layer_norm, torch.layer_norm, F.rms_norm), ("input", "normalized_shape", "weight")),
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax), ("input|self", "dim")),
    fused_attention: ("query", "key", "value", "attn_mask"),
    torch.where: ("condition", "input|self", "other"),
    torch.searchsorted: ("sorted_sequence", "input|self"),
    torch.polygamma: ("n", "input|self"),
    torch.special.polygamma: ("n", "input|self"),
}  # fmt: skip
"""The names of the first arguments, spellings separated by `|`. All other functions call the first one `input`."""


def positional(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The same arguments, the operands that were given by keyword moved to their positions."""
    if not kwargs:
        return args, kwargs
    moved, rest = list(args), dict(kwargs)
    for names in SIGNATURES.get(func, FIRST)[len(args) :]:
        name = next((name for name in names.split("|") if name in rest), None)
        if name is None:
            break
        moved.append(rest.pop(name))
    return tuple(moved), rest


def tensors_in(*given: Any) -> Iterator[Tensor]:  # noqa: ANN401
    """All tensors in arguments or results, however they are nested, in order."""
    left = list(reversed(given))
    while left:
        x = left.pop()
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list, dict)):
            left.extend(reversed(x.values() if isinstance(x, dict) else x))


def first_tensor(out: Any) -> Tensor:  # noqa: ANN401
    """The residual stream among what a module gave: the first tensor."""
    return out[0] if isinstance(out, (tuple, list)) else out


def stream_of(args: tuple, kwargs: dict) -> Tensor:
    """The residual stream among a block's arguments: the first tensor."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            return x
    raise SeamError("a block was called without any tensor, so the residual stream cannot be followed.")
