"""What measuring costs beside the passes it is made of: perturbation curves and localisation.

A perturbation curve is measured against the forward passes it contains, on the same images in the same batches;
localisation against the explanation whose maps it judges. Both run in turn in one process; the smallest time of several
rounds counts.

    python benchmarks/bench.py [--images 16] [--repeats 3] [--device cuda] [--dtype bfloat16]
"""

import argparse
import time
from collections.abc import Callable

import torch

import vitrail
from vitrail import metrics

LEVELS = tuple(k / 10 for k in range(1, 10))


def smallest(functions: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """The smallest time of each function, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            found[name].append(time.perf_counter() - started)
    return {name: min(times) for name, times in found.items()}


def main() -> None:
    """Print the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    given = parser.parse_args()
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    small = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "num_labels": 1000}
    model = ViTForImageClassification(ViTConfig(**small)).eval().to(given.device)
    images = torch.rand(given.images, 3, 224, 224, device=given.device)
    labels = torch.zeros(given.images, dtype=torch.int64)
    half = torch.autocast(given.device, torch.bfloat16, enabled=given.dtype == "bfloat16")

    @torch.no_grad()
    def score(x: torch.Tensor) -> torch.Tensor:
        with half:
            return model((x - 0.5) / 0.5).logits.float()

    def explain() -> torch.Tensor:
        return vitrail.explain(model, (images - 0.5) / 0.5, "gae").heatmap()

    maps = explain()
    masks = torch.zeros(given.images, 224, 224, dtype=torch.int64, device=given.device)
    masks[:, 60:160, 60:160] = 1
    repeated = [part for _ in LEVELS for part in images.split(64)]
    curve = smallest(
        {
            "passes": lambda: [score(part) for part in repeated],
            "curve": lambda: metrics.perturbation_curve(score, images, maps, labels, levels=LEVELS),
        },
        given.repeats,
        given.device,
    )
    judged = smallest(
        {"explain": explain, "both": lambda: metrics.segmentation_counts(explain(), masks)},
        given.repeats,
        given.device,
    )
    print(f"ViT-Tiny at 224, {given.images} images, {given.device}, {given.dtype}, torch {torch.__version__}\n")
    print("| what | seconds | against | ratio | limit |\n|---|---|---|---|---|")
    print(f"| curve of 9 levels | {curve['curve']:.2f} | its passes | {curve['curve'] / curve['passes']:.2f} | 1.25 |")
    ratio = judged["both"] / judged["explain"]
    print(f"| explanation and localisation | {judged['both']:.2f} | the explanation | {ratio:.2f} | 1.50 |")


if __name__ == "__main__":
    main()
