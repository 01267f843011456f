"""What an explanation costs beside one plain forward and backward pass of the same model, on one device, in one run.

The floor is a frozen model, one forward pass and `autograd.grad` of the predicted logit with respect to the input of
the first block. Today's practice keeps every attention map and its gradient and multiplies n x n matrices. Captum's
integrated gradients are measured where it is installed. Weights are random: cost does not depend on them.

    python benchmarks/flash.py [--case "ViT-B/16 224, batch 64"] [--repeats 20] [--markdown FILE] [--plot FILE]
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import vitrail

DEFAULT = "consensus (the default)"
METHODS = ("gae", "absolute_gradient", "complete_gradient", "tokentm", "attcat", "gradtoken")
WHOLE = ("attn_lrp", "conservative_lrp", "partial_lrp", "le_grad", "transformer_attribution", "lrp")
"""Methods that make passes of their own, by rules or one block at a time."""
PREPARED = ("gae", "tokentm", "attn_lrp", "conservative_lrp", "partial_lrp", "transformer_attribution", "lrp")
"""Methods that are also measured as a CUDA graph, beside the default."""
LONGEST = 3.0
"""Seconds after which nothing is repeated a fourth time."""
PRACTICE = "materialised maps, full rollout"


@dataclass(frozen=True)
class Case:
    """One model and one batch, and how much more than the floor an explanation may take."""

    build: Callable[[str], nn.Module]
    inputs: Callable[[str], dict[str, Tensor]]
    time: float
    memory: float


def _vit(size: int, patch: int, width: int, depth: int, attention: str) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=size, patch_size=patch, hidden_size=width, num_hidden_layers=depth, num_attention_heads=width // 64,
        intermediate_size=4 * width, num_labels=1000, attn_implementation=attention,
    )  # fmt: skip
    return ViTForImageClassification(config)


def _bert(length: int, attention: str) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=1000, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=length, attn_implementation=attention,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def _pictures(batch: int, size: int) -> Callable[[str], dict[str, Tensor]]:
    return lambda device: {"pixel_values": torch.randn(batch, 3, size, size, device=device)}


def _words(length: int) -> Callable[[str], dict[str, Tensor]]:
    return lambda device: {"input_ids": torch.randint(1000, (1, length), device=device)}


CASES = {
    "ViT-B/16 224, 1 picture": Case(lambda a: _vit(224, 16, 768, 12, a), _pictures(1, 224), 1.30, 1.05),
    "ViT-B/16 224, batch 64": Case(lambda a: _vit(224, 16, 768, 12, a), _pictures(64, 224), 1.10, 1.05),
    "ViT-L/14 518, batch 8": Case(lambda a: _vit(518, 14, 1024, 24, a), _pictures(8, 518), 1.15, 1.05),
    "24 layers, 512 tokens": Case(lambda a: _bert(512, a), _words(512), 1.30, 1.05),
    "24 layers, 4,096 tokens": Case(lambda a: _bert(4096, a), _words(4096), 1.25, 1.05),
    "24 layers, 16,384 tokens": Case(lambda a: _bert(16384, a), _words(16384), 1.30, 1.10),
    "24 layers, 65,536 tokens": Case(lambda a: _bert(65536, a), _words(65536), 1.35, 1.10),
}
SECOND_PASS = {"attcat": 0.15, "gradtoken": 0.15}
"""Methods that read the attention of lower layers once more may take so much more."""


def blocks(model: nn.Module) -> nn.ModuleList:
    """The blocks of either model."""
    return next(m for m in model.modules() if isinstance(m, nn.ModuleList))


def floor(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """One forward pass, one gradient down to the first block."""
    roots: list[Tensor] = []

    def cut(module: nn.Module, args: tuple) -> tuple:
        roots.append(args[0].detach().requires_grad_())
        return (roots[0], *args[1:])

    handle = blocks(model)[0].register_forward_pre_hook(cut)
    logits = model(**inputs).logits
    handle.remove()
    torch.autograd.grad(logits.amax(dim=1).sum(), roots)


def practice(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Every map and its gradient at once, then products of n x n matrices, as released code does."""
    floor_inputs = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in inputs.items()}
    table = model.get_input_embeddings()
    keep = [] if "pixel_values" in inputs else [table.register_forward_hook(lambda m, a, out: out.requires_grad_())]
    output = model(**floor_inputs, output_attentions=True)
    for handle in keep:
        handle.remove()
    gradients = torch.autograd.grad(output.logits.amax(dim=1).sum(), output.attentions)
    tokens = output.attentions[0].shape[-1]
    total = torch.eye(tokens, device=output.logits.device).expand(len(output.logits), -1, -1)
    for attention, gradient in zip(output.attentions, gradients, strict=True):
        mixing = (attention.detach().float() * gradient.float()).clamp(min=0).mean(dim=1)
        total = total + mixing @ total
    return total[:, 0]


def integrated(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Captum's integrated gradients, 20 steps, one after the other."""
    from captum.attr import IntegratedGradients

    (x,) = inputs.values()
    IntegratedGradients(lambda pixels: model(pixels).logits.amax(dim=1)).attribute(
        x, n_steps=20, internal_batch_size=len(x)
    )


def grad_cam(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Grad-CAM of the package grad-cam, at the first norm of the last block, as its guide for ViT says."""
    from pytorch_grad_cam import GradCAM

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).logits.float()

    def on_grid(x: Tensor) -> Tensor:
        side = int((x.shape[1] - 1) ** 0.5)
        return x[:, 1:].float().unflatten(1, (side, side)).permute(0, 3, 1, 2)

    norm = next(m for n, m in blocks(model)[-1].named_modules() if n.endswith(("layernorm_before", "norm1")))
    (x,) = inputs.values()
    with GradCAM(model=Logits(), target_layers=[norm], reshape_transform=on_grid) as cam:
        cam(input_tensor=x.detach().requires_grad_(), targets=None)  # nothing else of a frozen model has a gradient


def tasks(case: Case, device: str, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the floor first."""
    torch.manual_seed(0)
    model, inputs = _ready(case.build, "sdpa", device, dtype), case.inputs(device)
    inputs = {n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()}
    found: dict[str, Callable[[], object]] = {"floor": lambda: floor(model, inputs)}
    names = {DEFAULT: "auto", **{name: name for name in (*METHODS, *WHOLE)}}
    for shown, method in names.items():
        found[shown] = lambda method=method: vitrail.explain(model, inputs, method)
    for shown, method in {DEFAULT: "auto", **{name: name for name in PREPARED}}.items():
        found[f"{shown}, prepared"] = _prepared(model, inputs, method)
    if "pixel_values" in inputs:
        found["consensus(preset=fine)"] = lambda: vitrail.explain(model, inputs, "consensus", preset="fine")
    if find_spec("captum") is not None and "pixel_values" in inputs:
        found["integrated gradients, 20 steps (captum)"] = lambda: integrated(model, inputs)
    if find_spec("pytorch_grad_cam") is not None and "pixel_values" in inputs:
        found["Grad-CAM (grad-cam)"] = lambda: grad_cam(model, inputs)
    eager: list[nn.Module] = []  # made when its turn comes, so that it is in no other's memory

    def materialise() -> Tensor:
        if not eager:
            eager.append(_ready(case.build, "eager", device, dtype))
        return practice(eager[0], inputs)

    found[PRACTICE] = materialise
    return found


def _prepared(model: nn.Module, inputs: dict[str, Tensor], method: str) -> Callable[[], object]:
    """A prepared explanation, recorded when its turn comes; where it cannot be recorded, the reason is printed."""
    made: list[vitrail.Explainer] = []

    def run() -> object:
        if not made:
            made.append(vitrail.prepare(model, inputs, method))
            if made[0].reason is not None:
                print(f"{method} is not recorded: {made[0].reason}", flush=True)
        return made[0](inputs)

    return run


def _ready(build: Callable[[str], nn.Module], attention: str, device: str, dtype: torch.dtype) -> nn.Module:
    with torch.device(device):
        return build(attention).eval().requires_grad_(requires_grad=False).to(dtype)


EMPTY: list[int] = []
"""Bytes of the device that are in use before a model is made."""


def in_use() -> int:
    """Bytes of the device that are in use, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return total - free


@dataclass(frozen=True)
class Measured:
    """Seconds by the clock, and the peak of memory in bytes."""

    seconds: float
    bytes: int


def measure(run: Callable[[], object], repeats: int) -> Measured | None:
    """The median of some runs after a first that is not counted, at least three; None where it failed, and why is said.

    A run that fails, for want of memory or for a method that does not apply, ends itself and nothing else.
    """
    seconds: list[float] = []
    gc.collect()  # what was measured before keeps no memory
    torch.cuda.empty_cache()
    try:
        run()
        torch.cuda.reset_peak_memory_stats()
        while len(seconds) < min(3, repeats) or (len(seconds) < repeats and sum(seconds) < LONGEST):
            started = time.perf_counter()
            run()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()  # what stays in use is needed: a recording keeps memory that is not allocated
        return Measured(statistics.median(seconds), max(peak, in_use() - EMPTY[0]))
    except Exception as error:
        print(f"failed: {type(error).__name__}: {str(error).splitlines()[0][:300]}", flush=True)
        return None
    finally:
        torch.cuda.empty_cache()


def compare(
    name: str, repeats: int, chosen: Sequence[str] | None = None, keep: Callable[[dict], object] = lambda found: None
) -> dict[str, dict[str, float] | None]:
    """Seconds and bytes of everything in one case, or of the floor and of what is chosen.

    Args:
        keep: is given what was found after every row, so that a run that is cut short leaves something.
    """
    found: dict[str, dict[str, float] | None] = {}
    some = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
    torch.mm(some, some)  # libraries take memory of their own when they are first used
    EMPTY[:] = [in_use()]
    runs = tasks(CASES[name], "cuda", torch.bfloat16)
    for what in ["floor", *(task for task in chosen or runs if task in runs and task != "floor")]:
        measured = measure(runs.pop(what), 1 if what == PRACTICE else repeats)  # a recording keeps its memory: drop it
        found[what] = None if measured is None else vars(measured)
        keep(found)
        print(f"{name} | {what} | {measured}", flush=True)
    return found


def fresh(name: str, repeats: int, chosen: Sequence[str] | None) -> dict:
    """The same in a process of its own: memory that a library keeps is in no other case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        rows = [part for what in chosen or () for part in ("--method", what)]
        command = [sys.executable, __file__, "--case", name, "--repeats", str(repeats), "--json", str(path), *rows]
        subprocess.run(command, check=True)
        return json.loads(path.read_text())[name]


def table(results: dict[str, dict]) -> str:
    """The Markdown table: ratios to the floor, with the limit beside them."""
    lines = [
        "| case | what | time | ratio | limit | peak memory | ratio | limit |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in results.items():
        base, case = found["floor"], CASES[name]
        for what, one in found.items():
            limits = (case.time + SECOND_PASS.get(what, 0), case.memory) if what in METHODS else None
            lines.append(_line(name, what, one, base, limits))
    return "\n".join(lines)


def by_case(results: dict[str, dict], key: str) -> str:
    """A table with one column a case: ratios to the floor, milliseconds or GiB in brackets.

    Args:
        key: `seconds` or `bytes`.
    """
    scale = {"seconds": 1e3, "bytes": 2**-30}[key]
    lines = [f"| | {' | '.join(results)} |", "|---|" + "---:|" * len(results)]
    for what in dict.fromkeys(what for found in results.values() for what in found):
        cells = []
        for found in results.values():
            one, base = found.get(what), found["floor"][key]
            known = "failed" if what in found else ""
            cells.append(known if one is None else f"{one[key] / base:.2f} ({one[key] * scale:.1f})")
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(name: str, what: str, one: dict | None, base: dict, limits: tuple[float, float] | None) -> str:
    if one is None:
        return f"| {name} | {what} | failed | | | | | |"
    clock, memory = (one[name] / base[name] for name in ("seconds", "bytes"))
    shown = [f"{limit:.2f}" for limit in limits] if limits else ["", ""]
    return (
        f"| {name} | {what} | {1e3 * one['seconds']:.1f} ms | {clock:.2f} | {shown[0]} "
        f"| {one['bytes'] / 2**30:.2f} GiB | {memory:.2f} | {shown[1]} |"
    )


def plot(results: dict[str, dict], path: Path) -> None:
    """Bars of time over the floor, one group a case."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = (f"{DEFAULT}, prepared", DEFAULT, "gae, prepared", "gae", "attn_lrp, prepared", PRACTICE)
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for place, what in enumerate(shown):
        ratios = [
            found[what]["seconds"] / found["floor"]["seconds"] if found.get(what) else 0.0 for found in results.values()
        ]
        bars = axes.bar([i + 0.15 * place for i in range(len(results))], ratios, width=0.14, label=what)
        known = ["failed" if what in found else "" for found in results.values()]  # else it was not measured
        axes.bar_label(bars, [f"{x:.2f}" if x else why for x, why in zip(ratios, known, strict=True)], fontsize=6)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xticks([i + 0.3 for i in range(len(results))], [name.replace(", ", "\n") for name in results], fontsize=7)
    axes.set_ylabel("time / forward + backward")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the cases and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--method", action="append", help="measure this row and the floor only; may be repeated")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="keep the raw numbers here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--plot", type=Path, help="draw the bars here")
    parser.add_argument("--read", type=Path, help="measure nothing, and show what --json kept: one object a line")
    given = parser.parse_args()
    if given.read:
        kept = [json.loads(line) for line in given.read.read_text().splitlines() if line.strip()]
        show({case: found for one in kept for case, found in one.items()}, given)
        return
    if not torch.cuda.is_available():
        parser.exit(2, "this machine has no CUDA device; for the CPU: python benchmarks/explain.py\n")
    results: dict[str, dict] = {}

    def keep(name: str, found: dict) -> None:
        results[name] = found
        if given.json:
            given.json.write_text(json.dumps(results))

    cases = given.case or list(CASES)
    for name in cases:
        if len(cases) == 1:
            compare(name, given.repeats, given.method, partial(keep, name))
        else:
            keep(name, fresh(name, given.repeats, given.method))
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {time.strftime('%d %B %Y')}\n")
    show(results, given)


def show(results: dict[str, dict], given: argparse.Namespace) -> None:
    """Print the tables, and write and draw them if asked for."""
    text = "\n\n".join([table(results), by_case(results, "seconds"), by_case(results, "bytes")])
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n")
    if given.plot:
        plot(results, given.plot)


if __name__ == "__main__":
    main()
