"""Transformer Input Sampling: how well the class is recognised from some of the patches alone.

Englebert et al., "Explaining Through Transformer Input Sampling", ICCV Workshops 2023, as its released code
computes it. Symbols: raw masks -> centroids of the channels' maps over the patches, m_k -> the patches mask k keeps,
score_k -> the probability of the class when the model sees these alone.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer
from vitrail.errors import AnatomyError, MethodError, OptionError
from vitrail.methods.options import check_choice, check_count, check_seed, min_max_over, show_progress
from vitrail.models.anatomy import Body, find
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.targets import SCALARS

ROUNDS = 100
"""Where k-means stops if its groups have not settled."""


def channel_maps(layers: Sequence[Layer], patches: Callable[[Tensor], Tensor] = lambda x: x) -> Float[Tensor, "b c p"]:
    """Step 1: the outputs of all blocks, each channel of each block one map over the patches.

    Args:
        patches: picks the patches of all tokens.
    """
    return torch.cat([patches(layer.state("leaving").transpose(1, 2)) for layer in layers], dim=1)


def centroids(points: Float[Tensor, "n p"], count: int, seed: int) -> Float[Tensor, "k p"]:
    """Step 2: k-means from points drawn at random; all points where there are no more than centroids."""
    if len(points) <= count:
        return points
    drawn = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:count]
    return lloyd(points, points[drawn.to(points.device)])


def lloyd(points: Float[Tensor, "n p"], start: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
    """Step 2: points join their nearest centroid, centroids move to the mean of their points, until none does."""
    centres, before = start, None
    for _ in range(ROUNDS):
        # |x - c|^2 without |x|^2, which is the same for every centroid.
        nearest = torch.addmm(centres.square().sum(dim=1), points, centres.T, alpha=-2).argmin(dim=1)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        sizes = nearest.bincount(minlength=len(centres))[:, None]
        # A product, for adding up by index is not repeatable on every device.
        sums = (nearest == torch.arange(len(centres), device=points.device)[:, None]).to(points.dtype) @ points
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return centres


def strongest(raw: Float[Tensor, "*m p"], ratio: float) -> Int[Tensor, "*m k"]:
    """Step 3: the int(ratio p) patches where a raw mask is largest, in reading order."""
    kept = int(ratio * raw.shape[-1])
    if kept == 0:
        raise OptionError(f"ratio={ratio} keeps none of the {raw.shape[-1]} patches.")
    return raw.argsort(dim=-1, descending=True, stable=True)[..., :kept].sort(dim=-1).values


def keep(stream: Float[Tensor, "m t d"], patches: Int[Tensor, "m k"], index: Sequence[int]) -> Float[Tensor, "m s d"]:
    """Step 4: the stream without the hidden patches: prefix tokens and kept patches, a shorter sequence.

    Args:
        index: the token of each patch.
    """
    places = torch.tensor(index, device=stream.device)
    others = torch.ones(stream.shape[1], dtype=torch.bool, device=stream.device).index_fill(0, places, value=False)
    first = others.nonzero()[:, 0].expand(len(patches), -1)
    chosen = torch.cat([first, places[patches]], dim=1).sort(dim=1).values
    return stream.gather(1, chosen[:, :, None].expand(-1, -1, stream.shape[2]))


def average(scores: Float[Tensor, "b m"], masks: Bool[Tensor, "b m p"]) -> Float[Tensor, "b p"]:
    """Step 5: Σ_k score_k m_kj / Σ_k m_kj; NaN for a patch that no mask keeps."""
    weights = masks.to(scores.dtype)
    return torch.einsum("bm,bmp->bp", scores, weights) / weights.sum(dim=1)


def normalised(found: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
    """Step 5: minus the minimum, then over the maximum. Zero where no mask keeps a patch, and for a constant map."""
    return min_max_over(found, ~found.isnan())


def as_masks(kept: Sequence[Int[Tensor, "b m _"]], patches: int) -> Bool[Tensor, "b n p"]:
    """m_k: true where a mask keeps a patch, the masks of all ratios one after the other."""
    empty = [torch.zeros(*one.shape[:2], patches, dtype=torch.bool, device=one.device) for one in kept]
    return torch.cat([mask.scatter_(2, one, value=True) for mask, one in zip(empty, kept, strict=True)], dim=1)


def own_masks(runner: Runner, count: int, seed: int) -> Float[Tensor, "b m p"]:
    """Steps 1 and 2 on the pass that has been made."""
    layers = runner.layers(frozenset({"leaving"}))[: len(runner.body.blocks)]
    return torch.stack([centroids(points, count, seed) for points in channel_maps(layers, runner.run.patches)])


def portions(patches: Int[Tensor, "b m k"], batch: int) -> list[tuple[Int[Tensor, " n"], Int[Tensor, "n k"]]]:
    """The masks of all samples in portions, each with the sample it belongs to."""
    rows = torch.arange(len(patches), device=patches.device).repeat_interleave(patches.shape[1])
    return list(zip(rows.split(batch), patches.flatten(0, 1).split(batch), strict=True))


def score_kept(runner: Runner, rows: Int[Tensor, " n"], patches: Int[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """Step 4: the scalar of a model that sees the kept patches only."""

    def edit(stream: Tensor) -> Tensor:
        if runner.body.blocks[0].batch_first:
            return keep(stream, patches, runner.run.origin.index)
        return keep(stream.transpose(0, 1), patches, runner.run.origin.index).transpose(0, 1)

    return runner.score(runner.inputs.take(rows), rows, edit)


def check_removable(model: nn.Module, body: Body) -> None:
    """Raise unless the model is known to work without some of its tokens."""
    parts = body.anatomy
    places = [body.owner, *(block.module for block in body.blocks)]
    if any(find(place, parts.relative) is not None for place in places):
        raise MethodError(
            f"tis removes tokens, but in this {type(model).__name__} ({parts.name}) attention depends on the relative "
            f"positions of tokens ({parts.relative}), which a shorter sequence would change. Use vit_cx, which hides "
            "pixels instead."
        )
    if not body.blocks or find(body.owner, parts.positions) is None:
        raise AnatomyError(
            f"tis removes tokens after the positional embedding is added, before the first block, but the {parts.name} "
            f"anatomy of this {type(model).__name__} names {'none' if parts.positions is None else 'a missing one'}. "
            "If the model has one and its blocks do not depend on the number of tokens: "
            "vitrail.Anatomy(blocks=..., positions=...). Else use vit_cx, which hides pixels instead."
        )


def read_masks(masks: Tensor | np.ndarray, batch: int) -> Float[Tensor, "b m p"]:
    """Raw masks as given, for every sample."""
    given = torch.as_tensor(masks)
    shape = " x ".join(map(str, given.shape))
    if given.ndim not in (2, 3) or given.shape[-2:].numel() == 0 or (given.ndim == 3 and len(given) != batch):
        raise OptionError(f"masks are [masks, patches] or [{batch}, masks, patches], but these are {shape}.")
    given = given if given.is_floating_point() else given.float()
    if not bool(given.isfinite().all()):
        raise OptionError(f"some of the masks ({shape}) hold NaN or infinity, so their patches have no order.")
    return given if given.ndim == 3 else given.expand(batch, -1, -1)


def read_ratios(ratio: float | Sequence) -> tuple[float, ...]:
    """The ratios of patches to keep, one or several."""
    ratios = (ratio,) if isinstance(ratio, (int, float)) else tuple(ratio)
    if not ratios or not all(isinstance(x, (int, float)) and 0 < x <= 1 for x in ratios):
        raise OptionError(f"ratio={ratio!r}, but ratios are above 0 and at most 1.")
    return ratios


def build(
    *,
    masks: Tensor | np.ndarray | None = None,
    clusters: int = 1024,
    ratio: float | Sequence = 0.5,
    scalar: str = "probability",
    batch: int = 128,
    seed: int = 0,
    progress: bool = True,
) -> RerunMethod:
    """The score of the class on the patches that are kept, averaged for each patch over the masks that keep it.

    Args:
        masks: raw masks instead of the centroids, numbers over the patches: `[masks, patches]`, or `[batch, masks,
            patches]` with masks for each picture.
        clusters: how many centroids the channels of all blocks are grouped into; each channel is its own if there are
            no more channels.
        ratio: the share of patches a mask keeps; several make as many masks of each centroid.
        scalar: score kept patches by the `probability` of the class (released code), or by its `logit`.
        batch: masks tried at a time.
        seed: of the points k-means starts from; the same for every picture of a batch.
        progress: show a bar on the terminal if it takes long.
    """
    check_count("batch", batch)
    check_count("clusters", clusters)
    check_seed(seed)
    check_choice("scalar", scalar, SCALARS)
    ratios = read_ratios(ratio)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        check_removable(model, body)
        if masks is not None:
            read_masks(masks, inputs.batch)

    def explain(runner: Runner) -> Result:
        raw = own_masks(runner, clusters, seed) if masks is None else read_masks(masks, runner.inputs.batch)
        cut = len(runner.run.origin.index)
        if raw.shape[2] != cut:
            raise OptionError(f"masks have {raw.shape[2]} columns, but the model cuts the picture into {cut} patches.")
        kept = [strongest(raw.to(runner.run.valid.device), share) for share in ratios]
        tries = [one for patches in kept for one in portions(patches, batch)]
        steps = show_progress(tries, f"tis, {sum(len(rows) for rows, _ in tries)} masks", show=progress)
        scores = torch.cat([score_kept(runner, rows, patches) for rows, patches in steps])
        found = average(rearrange(scores, "(r b m) -> b (r m)", r=len(kept), b=len(raw)), as_masks(kept, raw.shape[2]))
        return Result(runner.run.among_tokens(normalised(found)))

    return RerunMethod(explain, needs=frozenset({"leaving"}), scalar=scalar, check=check)
