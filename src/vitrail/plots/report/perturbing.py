"""What becomes of the probability while the highest-scored pixels or tokens are removed, and while random ones are."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError
from vitrail.evaluate.bench.opened import Opened, affine
from vitrail.evaluate.metrics import perturbation_curve, text_curve
from vitrail.models.inputs import read_inputs
from vitrail.models.loading import Loaded, Sample
from vitrail.plots.report.entries import Curve

LEVELS = tuple(k / 10 for k in range(11))
FILL = "black"
RANDOM = 3
"""Random orders whose mean is shown beside the methods."""
Curves = tuple[list[Curve], Curve]
Measure = Callable[[Sample, Sequence[Attribution], int], Curves]


def measure_of(loaded: Loaded) -> Measure:
    """The function that gives the methods' curves and the random one, for an input and a class."""
    if loaded.task not in MEASURES:
        raise InputError(f"{loaded.name} is a language model; curves are drawn for models of classes.")
    return MEASURES[loaded.task](loaded)


def _on_pictures(loaded: Loaded) -> Measure:
    device = next(loaded.model.parameters()).device
    return partial(_pictures, Opened(loaded, device, *affine(loaded)))


def _pictures(opened: Opened, sample: Sample, found: Sequence[Attribution], index: int) -> Curves:
    inputs = read_inputs(sample.inputs).shown.detach()
    image = ((inputs - opened.shift.to(inputs)) / opened.scale.to(inputs)).clamp(0, 1)
    size = (image.shape[2], image.shape[3])
    rows, columns = found[0].grid or size
    maps = torch.cat([*(a.heatmap(size).detach().to(image) for a in found), _noise((rows, columns), size).to(image)])
    images, labels = image.expand(len(maps), -1, -1, -1), [index] * len(maps)
    inner = perturbation_curve(opened.logits, images, maps, labels, levels=LEVELS[1:-1], fill=FILL).probability
    # Nothing or all removed: the same for every map.
    ends = perturbation_curve(opened.logits, image, maps[:1], [index], levels=(0, 1), fill=FILL).probability
    first, last = (np.broadcast_to(end, (1, len(maps))) for end in ends)
    return _split(np.concatenate([first, inner, last]).T, len(found))


def _noise(grid: tuple[int, int], size: tuple[int, int]) -> Float[Tensor, "r h w"]:
    values = torch.rand(RANDOM, 1, *grid, generator=torch.Generator().manual_seed(0))
    return F.interpolate(values, size=size, mode="bilinear", align_corners=False)[:, 0]


def _on_texts(loaded: Loaded) -> Measure:
    return partial(_texts, loaded)


def _texts(loaded: Loaded, sample: Sample, found: Sequence[Attribution], index: int) -> Curves:
    tokenizer = loaded.tokenizer
    ids = np.asarray(read_inputs(sample.inputs).shown[0].cpu())
    generator = np.random.default_rng(0)
    scores = [*(a.scores[0].detach().cpu().numpy() for a in found), *generator.random((RANDOM, len(ids)))]
    curve = text_curve(
        partial(_logits, loaded),
        [ids] * len(scores),
        scores,
        [index] * len(scores),
        special=set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id},
        pad=tokenizer.pad_token_id or 0,
    )
    return _split(curve.p_k, len(found))


def _logits(loaded: Loaded, ids: Tensor, mask: Tensor) -> Tensor:
    device = next(loaded.model.parameters()).device
    return loaded.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits


def _split(rows: Float[np.ndarray, "n l"], methods: int) -> Curves:
    return [tuple(row) for row in rows[:methods].tolist()], tuple(rows[methods:].mean(axis=0).tolist())


MEASURES: dict[str, Callable[[Loaded], Measure]] = {"image": _on_pictures, "sequence": _on_texts}
