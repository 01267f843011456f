"""Three claims of Cui, Fan and Chen (arXiv:2605.11392), measured on pictures of one's own.

    python benchmarks/guidance.py signs --samples FOLDER -m vit.safetensors --arch vit_tiny_patch16_224
    python benchmarks/guidance.py pets --pets FOLDER --limit 150 -m vit.safetensors --arch vit_tiny_patch16_224

`signs`: in pictures of zebras and elephants (`el1.png` to `el5.png`) the complete correction gives the two opposite
signs. `pets`: on pictures of one class it is poor, and a guide mends that (pixel accuracy, mIoU and mAP against the
outlines of the Oxford pets, threshold at the mean of each map, explained class the label).
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrail
from vitrail import data, metrics
from vitrail.models.loading import Loaded, load
from vitrail.models.loading.images import open_image

ZEBRA, ELEPHANT = 340, 386
BOXES = {  # left, top, right, bottom of the zebras and of the elephants, as shares of the squashed picture
    "el1": ((0.0, 0.40, 0.34, 0.78), (0.50, 0.08, 1.0, 0.88)),
    "el2": ((0.43, 0.42, 0.93, 0.90), (0.05, 0.07, 0.68, 0.40)),
    "el3": ((0.42, 0.50, 1.0, 0.88), (0.06, 0.27, 0.42, 0.80)),
    "el4": ((0.0, 0.52, 1.0, 0.95), (0.08, 0.14, 0.88, 0.45)),
    "el5": ((0.15, 0.63, 0.93, 0.90), (0.05, 0.50, 0.95, 0.61)),
}
Explain = Callable[[torch.nn.Module, Tensor, list[int]], vitrail.Attribution]
WAYS: dict[str, Explain] = {
    "gae": lambda m, x, t: vitrail.explain(m, x, "gae", t),
    "gae, guided": lambda m, x, t: vitrail.guide(m, x, target=t, method="gae"),
    "complete_gradient": lambda m, x, t: vitrail.explain(m, x, "complete_gradient", t),
    "complete_gradient, guided": lambda m, x, t: vitrail.guide(m, x, target=t),
    "complete_gradient, guided, right": lambda m, x, t: vitrail.guide(m, x, target=t, side="right"),
    "complete_gradient, guided, stacked": lambda m, x, t: vitrail.guide(m, x, target=t, layout="stacked"),
    "complete_gradient, guided, mosaic": lambda m, x, t: vitrail.guide(m, x, target=t, layout="mosaic"),
    "complete_gradient, guided, native": lambda m, x, t: vitrail.guide(m, x, target=t, size="native"),
}


def mean_in(box: tuple[float, float, float, float], scores: Tensor) -> float:
    """The mean score of a box, in shares of the largest magnitude."""
    rows, columns = scores.shape
    x0, y0, x1, y1 = (round(share * size) for share, size in zip(box, (columns, rows, columns, rows), strict=True))
    return float((scores / scores.abs().max())[y0:y1, x0:x1].mean())


def signs(loaded: Loaded, folder: Path) -> None:
    """Print the mean score of zebras and elephants, for each as the target."""
    print("| picture | method | target zebra: zebras, elephants | target elephant: zebras, elephants | Spearman |")
    print("|---|---|---|---|---|")
    for name, (zebras, elephants) in BOXES.items():
        inputs = loaded.image(open_image(folder / f"{name}.png"), squash=True).inputs
        for method in ("gae", "complete_gradient", "absolute_gradient"):
            found = [vitrail.explain(loaded.model, inputs, method, target) for target in (ZEBRA, ELEPHANT)]
            maps = [one.scores[0].reshape(one.grid or (1, -1)) for one in found]
            pairs = [f"{mean_in(zebras, one):+.2f}, {mean_in(elephants, one):+.2f}" for one in maps]
            ranks = float(metrics.rank_correlation(found[0].scores, found[1].scores)[0])
            print(f"| {name} | {method} | {pairs[0]} | {pairs[1]} | {ranks:+.2f} |", flush=True)


def pets(loaded: Loaded, folder: Path, limit: int, ways: list[str]) -> None:
    """Print how well maps fit the outlines, with and without a guide."""
    chosen = list(data.load("pets", folder).spread(limit))
    inputs = torch.cat([loaded.image(example.image, squash=True).inputs for example in chosen])
    size = (inputs.shape[2], inputs.shape[3])
    masks = torch.stack([data.resize_mask(example.mask, size) for example in chosen])
    labels = [example.label for example in chosen]
    print("| method | pixel accuracy | mIoU | mAP |\n|---|---|---|---|")
    for name in ways:
        maps: list[np.ndarray] = []
        for start in range(0, len(labels), 16):
            some = slice(start, start + 16)
            found = WAYS[name](loaded.model, inputs[some], labels[some])
            maps += list(found.heatmap(size).cpu().numpy())
        fit = metrics.segmentation(np.stack(maps), masks.numpy())
        print(
            f"| {name} | {100 * fit.pixel_accuracy:.1f} | {100 * fit.mean_iou:.1f} | {100 * fit.mean_ap:.1f} |",
            flush=True,
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("signs", "pets"))
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--pets", type=Path)
    parser.add_argument("--limit", type=int, default=150)
    parser.add_argument("--way", action="append", choices=list(WAYS))
    given = parser.parse_args()
    loaded = load(given.model, arch=given.arch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if given.what == "signs":
            signs(loaded, given.samples)
        else:
            pets(loaded, given.pets, given.limit, given.way or list(WAYS))


if __name__ == "__main__":
    main()
