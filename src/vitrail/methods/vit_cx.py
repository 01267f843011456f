"""ViT-CX: the causal effect of hiding all pixels but those that a group of the model's feature maps shows.

Xie, Li, Cao and Zhang, "ViT-CX: Causal Explanation of Vision Transformers", IJCAI 2023, arXiv:2211.03064, as its
released code computes it. Symbols: f(x) -> the probability of the class, M_i -> masks, ε_i -> noise, s_i -> effects.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor, nn

from vitrail.errors import AnatomyError, OptionError
from vitrail.methods.options import check_count, check_seed, min_max, show_progress
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner

Maps = Float[Tensor, "n h w"]


def drawn(maps: Float[Tensor, "n y x"], size: tuple[int, int]) -> Maps:
    """Maps over the patches, drawn as large as the picture."""
    return F.interpolate(maps[None], size=size, mode="bilinear", align_corners=False)[0]


def feature_masks(features: Float[Tensor, "n y x"], size: tuple[int, int]) -> Float[Tensor, "n y x"]:
    """Step 1: one soft mask per channel, over the patches, such that it runs from 0 to 1 when it is drawn.

    Drawing is linear and keeps constants, so masks need not be drawn to be stretched, compared and added up. A map
    without contrast shows nothing and becomes zero.
    """
    low, high = (x[:, None, None] for x in drawn(features, size).flatten(1).aminmax(dim=1))
    rounding = 8 * torch.finfo(features.dtype).eps * torch.maximum(low.abs(), high.abs())
    return min_max(features, low, torch.where(high - low > rounding, high, low))


def overlaps(count: int, length: int) -> Float[Tensor, "n n"]:
    """The overlaps of the patches of a row with each other when the row is drawn this long."""
    each = F.interpolate(torch.eye(count, dtype=torch.float64)[None], size=length, mode="linear", align_corners=False)
    return each[0] @ each[0].T


def distances(masks: Float[Tensor, "n y x"], size: tuple[int, int]) -> Float[Tensor, "n n"]:
    """Step 2: one minus the cosine of each pair of drawn masks; a mask of zeros is like no other."""
    down, across = (overlaps(*pair).to(masks) for pair in zip(masks.shape[1:], size, strict=True))
    products = torch.einsum("ayx,byx->ab", down @ masks @ across, masks)
    lengths = products.diagonal().sqrt()
    return 1 - (products / (lengths[:, None] * lengths)).nan_to_num(nan=0.0)


def clusters(between: Float[Tensor, "n n"], threshold: float) -> Int[Tensor, " n"]:
    """Step 2: groups in which no two masks are further apart than the threshold (complete linkage), from 0 on."""
    count = between.shape[0]
    if count == 1:
        return torch.zeros(1, dtype=torch.long, device=between.device)
    upper = torch.triu_indices(count, count, offset=1, device=between.device)
    tree = linkage(between[upper[0], upper[1]].double().cpu().numpy(), method="complete")
    labels = fcluster(tree, t=threshold, criterion="distance")
    return torch.from_numpy(labels).long().to(between.device) - 1


def cluster_masks(
    masks: Float[Tensor, "n y x"], labels: Int[Tensor, " n"], size: tuple[int, int]
) -> Float[Tensor, "m h w"]:
    """Step 3: M_i, the sum of a group's masks, drawn and stretched."""
    members = F.one_hot(labels).T.to(masks.dtype)
    return drawn(feature_masks(torch.einsum("mn,nyx->myx", members, masks), size), size)


def effects(masked: Float[Tensor, " n"], filled: Float[Tensor, " n"], clean: Float[Tensor, ""]) -> Float[Tensor, " n"]:
    """Step 4: s_i = f(x M_i + ε_i (1 - M_i)) - f(x + ε_i (1 - M_i)) + f(x)."""
    return masked - filled + clean


def saliency(scores: Float[Tensor, " n"], masks: Maps) -> Float[Tensor, "h w"]:
    """Step 5: (1/N) Σ_i s_i M_i / Σ_k M_k; zero where no mask shows anything."""
    cover = masks.sum(dim=0)
    seen = cover > 64 * torch.finfo(masks.dtype).eps  # what rounding leaves of 0 is no cover
    total = torch.einsum("n,nhw->hw", scores, masks) / len(masks)
    return torch.where(seen, total / cover, torch.zeros_like(total))


def draws(pictures: Tensor, *, noise: float, seed: int) -> Iterator[Float[Tensor, "c h w"]]:
    """ε_1, ε_2, ...: the same for a seed on any device, however masks are batched, whatever the model's precision."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield (noise * torch.randn(pictures.shape[1:], generator=generator)).to(pictures.device)


def last_features(runner: Runner) -> Float[Tensor, "b d y x"]:
    """Step 1: what leaves the first norm of the last block, as one map over the patches per channel."""
    last = runner.layers(frozenset({"attention_normed"}))[len(runner.body.blocks) - 1]
    tokens = last.state("attention_normed")[:, list(runner.run.origin.index)]
    assert runner.run.origin.grid is not None
    return rearrange(tokens, "b (y x) d -> b d y x", y=runner.run.origin.grid[0])


def causal_effects(runner: Runner, row: int, masks: Maps, noises: Iterator[Tensor] | None) -> Float[Tensor, " n"]:
    """Step 4 for some masks of one picture; without noise what is hidden is zero, and the second pass the clean one."""
    picture = runner.inputs.shown[row]
    rows = torch.full((len(masks),), row, device=masks.device)
    like, shown = runner.inputs.take(rows), masks[:, None].to(picture)
    if noises is None:
        return runner.score(like.showing(picture * shown), rows)
    fill = torch.stack([next(noises) for _ in masks]).to(picture) * (1 - shown)
    masked = runner.score(like.showing(torch.addcmul(fill, picture, shown)), rows)
    filled = runner.score(like.showing(picture + fill), rows)
    return effects(masked, filled, runner.part.scalar[row].detach())


def check_norm(model: nn.Module, body: Body, inputs: Inputs) -> None:
    """Refuse a model whose last block has no norm in front of its attention that is known."""
    if not body.blocks or body.blocks[-1].attention_norm is None:
        raise AnatomyError(
            f"vit_cx makes masks from the output of the last block's first norm, but in the {body.anatomy.name} "
            f"anatomy of this {type(model).__name__} there is none. If the model has one: "
            "vitrail.Anatomy(blocks=..., attention_norm=...)."
        )


def build(
    *, noise: float = 0.1, threshold: float = 0.1, batch: int = 50, seed: int = 0, progress: bool = True
) -> RerunMethod:
    """The dependence of the class on what each group of feature maps shows, averaged over the groups at each pixel.

    Args:
        noise: standard deviation of the noise that fills what a mask hides, in the units of the preprocessed picture;
            0 leaves it at zero and halves the cost.
        threshold: how far apart, as one minus the cosine, feature maps of one group may be.
        batch: pictures given to the model at a time.
        seed: of the noise; every picture of a batch gets the same.
        progress: show a bar on the terminal if it takes long.
    """
    check_count("batch", batch)
    check_seed(seed)
    if noise < 0 or threshold < 0:
        raise OptionError(f"noise={noise} and threshold={threshold}, but neither can be below zero.")

    def explain(runner: Runner) -> Result:
        size = runner.inputs.size
        assert size is not None
        found = []
        for row, features in enumerate(last_features(runner)):
            each = feature_masks(features, size)
            masks = cluster_masks(each, clusters(distances(each, size), threshold), size)
            noises = draws(runner.inputs.shown, noise=noise, seed=seed)
            words = f"vit_cx, picture {row + 1} of {runner.inputs.batch}"
            portions = show_progress(masks.split(batch), words, show=progress)
            scores = [causal_effects(runner, row, some, noises if noise else None) for some in portions]
            found.append(saliency(torch.cat(scores).to(masks.dtype), masks))
        return Result(pixels=torch.stack(found))

    return RerunMethod(explain, needs=frozenset({"attention_normed"}), scalar="probability", check=check_norm)
