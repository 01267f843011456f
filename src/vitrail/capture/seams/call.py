"""What is known of one attention call."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
    """What a fused kernel kept for its backward pass: the logarithm of the softmax's denominator, `[b, h, q]`."""
    names = ("_saved_logsumexp", "_saved_log_sumexp")
    kept = next((x for name in names if (x := getattr(output.grad_fn, name, None)) is not None), None)
    # Under autocast the kernel saw other numbers than the query that was heard.
    if kept is None or query.ndim != 4 or kept.dtype is not torch.float32 or output.dtype is not query.dtype:
        return None
    kept = kept.detach()
    if kept.ndim == 4 and kept.shape[-1] == 1:  # cuDNN keeps a last axis
        kept = kept.squeeze(-1)
    kept = kept[..., : query.shape[-2]]  # memory-efficient attention rounds the length up
    return kept if kept.shape == query.shape[:-1] else None


def allowed_keys(
    mask: Tensor | None, *, causal: bool, queries: int, keys: int, device: torch.device, first_row: int = 0
) -> Tensor | None:
    """Which key each query may see, as booleans that broadcast to `[b, h, q, k]`; None if all.

    Args:
        first_row: the place of the first of these queries.
    """
    if causal:
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(first_row)
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        return mask
    # Frameworks write "masked" as -inf or as a number near the lowest the dtype holds.
    return mask > torch.finfo(mask.dtype).min / 2
