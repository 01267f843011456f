"""What every method costs against the passes it is made of, on ViT-B/16 at 224 with random weights.

The unit of the rules (`lrp` and its kin) is one forward and one backward pass of the same model in the same precision;
the unit of methods that run the model again is the passes they need. Unit and method run in turn in one process, so
that a busy machine slows both alike; the smallest time of several rounds counts.

    python benchmarks/methods.py [--batch 8] [--repeats 3] [--method lrp ...] [--device cuda]
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import vitrail


@dataclass(frozen=True)
class Case:
    """A method, its options, what it is measured against, and how often that is counted."""

    method: str
    options: dict
    unit: str
    times: float = 1.0
    limit: float | None = None


RULES = dict.fromkeys(("lrp", "partial_lrp", "conservative_lrp", "attn_lrp", "abs_lrp"), 4.0)
CASES = [
    *(Case(name, {}, "forward + backward, float64", limit=limit) for name, limit in RULES.items()),
    Case("lrp", {"rules": "conserving"}, "forward + backward, float64", limit=4.0),
    Case("transformer_attribution", {}, "forward + backward, float64", limit=5.0),
    *(
        Case(name, {"precision": "float32"}, "forward + backward", limit=limit)
        for name, limit in {**RULES, "transformer_attribution": 5.0}.items()
    ),
    Case("libra_grad", {}, "forward + backward", limit=1.15),
    Case("gim", {}, "forward + backward", limit=1.15),
    Case("consensus", {}, "forward + backward", limit=3.5),
    Case("consensus", {"preset": "fine"}, "forward + backward", 3.5, 5.0),
    Case("integrated_gradients", {"steps": 8}, "forward + backward", 8, 1.3),
    Case("bi_head", {"steps": 8}, "forward", 8 + 3),
    Case("bi_token", {"steps": 8}, "forward", 8 + 1),
    Case("tam", {"steps": 8}, "forward", 8 + 1),
    Case("dix", {"steps": 3}, "forward + backward", 2 * 4, 1.3),
    *(
        Case(name, {}, "forward + backward")
        for name in ("gae", "agcam", "le_grad", "feature_grad_cam", "input_x_gradient", "grad_eclip_heads")
    ),
]


def build(device: str, dtype: torch.dtype, batch: int):
    """ViT-B/16 at 224 with random weights: time does not depend on their values."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).eval().to(device, dtype)
    return model, torch.randn(batch, 3, 224, 224, device=device, dtype=dtype)


def forward(model, images) -> None:
    """One forward pass without gradients."""
    with torch.no_grad():
        model(images)


def both(model, images) -> None:
    """One forward and one backward pass, to the weights and to the picture."""
    images = images.detach().requires_grad_()
    scalar = model(images).logits.amax(dim=1).sum()
    torch.autograd.grad(scalar, [images, *model.parameters()], allow_unused=True)


def frozen(model, images) -> None:
    """One forward and one backward pass to the picture alone."""
    images = images.detach().requires_grad_()
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    torch.autograd.grad(model(images).logits.amax(dim=1).sum(), images)
    for parameter in model.parameters():
        parameter.requires_grad_()


def seconds(function: Callable[[], object], device: str) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(case: Case, models: dict, repeats: int, device: str) -> str:
    """One line of the table: the smallest of several runs of the method over the smallest of its unit."""
    dtype = "float64" if "float64" in case.unit else "float32"
    unit = forward if case.unit == "forward" else both
    units = [lambda: unit(*models[dtype]), lambda: frozen(*models[dtype])]
    run = lambda: vitrail.explain(*models["float32"], case.method, **case.options)  # noqa: E731
    rounds = [[seconds(f, device) for f in (run, *units)] for _ in range(repeats)]
    method, floor, light = (min(column) for column in zip(*rounds, strict=True))
    ratio = method / (floor * case.times)
    name = f"{case.method}({', '.join(f'{k}={v}' for k, v in case.options.items())})"
    limit = "" if case.limit is None else f"{case.limit:.2f}{'' if ratio <= case.limit else ' MISSED'}"
    against = f"{case.times:g} x {case.unit}"
    return f"| `{name}` | {method:.2f} | {against} | {ratio:.2f} | {limit} | {method / (light * case.times):.2f} |"


def masks(name: str, options: dict, model, images, device: str) -> str:
    """A method that scores masks, against the time it spends inside the model."""
    inside: list[float] = []

    def clock(*_) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        inside.append(time.perf_counter())

    handles = [model.register_forward_pre_hook(clock), model.register_forward_hook(clock)]
    whole = seconds(lambda: vitrail.explain(model, images, name, **options), device)
    for handle in handles:
        handle.remove()
    passes = sum(end - start for start, end in zip(inside[::2], inside[1::2], strict=True))
    ratio = whole / passes
    limit = f"1.15{'' if ratio <= 1.15 else ' MISSED'}"
    return (
        f"| `{name}({options})` | {whole:.2f} | its {len(inside) // 2} calls of the model | {ratio:.2f} | {limit} | |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--method", action="append")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    models = {
        name: build(given.device, dtype, given.batch)
        for name, dtype in (("float32", torch.float32), ("float64", torch.float64))
    }
    where = f"{given.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"ViT-B/16 at 224, batch {given.batch}, {where}\n")
    print("| method | seconds | against | ratio | limit | ratio to frozen weights |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if not given.method or case.method in given.method:
            print(measure(case, models, given.repeats, given.device), flush=True)
    for name, options in (("vit_cx", {"threshold": 0.3}), ("tis", {"clusters": 64})):
        if not given.method or name in given.method:
            model, images = models["float32"]
            print(masks(name, options, model, images[:1], given.device), flush=True)


if __name__ == "__main__":
    main()
