"""Time and memory of explanations against one forward pass and one gradient of the same model.

The floor is a frozen model, one forward pass and `autograd.grad` of the predicted logits with respect to the input of
the first block. Every case runs in a fresh process; memory is its peak resident size minus its size after import.

    python benchmarks/explain.py [--batch 8] [--repeats 5]
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

import vitrail
from vitrail.methods import Method
from vitrail.relevance import Walk

SINGLE = ("gae", "complete_gradient", "tokentm", "gradtoken", "attcat")
LIMITS = {
    "consensus": (3.0, 1.5),
    **dict.fromkeys(SINGLE, (1.5, 1.25)),
    **dict.fromkeys(("attn_lrp", "conservative_lrp"), (1.3, 1.3)),
    "compare all": (2.5, None),
}


def build(batch: int):
    """ViT-B/16 at 224 with random weights: time and memory do not depend on their values."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).eval()
    model.requires_grad_(requires_grad=False)
    return model, torch.randn(batch, 3, 224, 224)


def floor(model, images) -> None:
    """One forward pass, one gradient down to the first block."""
    roots = []

    def cut(module, args):
        roots.append(args[0].detach().requires_grad_())
        return (roots[0], *args[1:])

    handle = model.vit.layers[0].register_forward_pre_hook(cut)
    logits = model(images).logits
    handle.remove()
    torch.autograd.grad(logits.amax(dim=1).sum(), roots)


def is_walk(method: Method) -> bool:
    """Whether a method reads the recording that others read too, and makes no pass of its own."""
    return isinstance(method.build(**method.resolve("recommended", {}, "image")), Walk)


def task(name: str, model, images):
    """The function a case runs again and again."""
    if name == "floor":
        return lambda: floor(model, images)
    methods = [n for n, m in vitrail.METHODS.items() if is_walk(m)] if name == "compare all" else [name]
    return lambda: vitrail.compare(model, images, methods)


def peak() -> int:
    """The largest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, batch: int, repeats: int) -> None:
    """Print the seconds of every run of one case beside those of the floor, and its peak memory."""
    import transformers  # noqa: F401  (its size is not the explanation's)

    before = peak()
    model, images = build(batch)
    run = task(name, model, images)
    run()
    memory = peak() - before
    base = task("floor", model, images)
    base()
    seconds: dict[str, list[float]] = {"floor": [], "case": []}
    for _ in range(repeats):  # taken in turn, so that a busy machine slows both alike
        for key, function in (("floor", base), ("case", run)):
            started = time.perf_counter()
            function()
            seconds[key].append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "memory": memory}))


def fresh(name: str, batch: int, repeats: int) -> dict:
    """What one case measured in a process of its own."""
    command = [sys.executable, __file__, "--case", name, "--batch", str(batch), "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=["floor", *vitrail.METHODS, "compare all"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.case:
        measure(given.case, given.batch, given.repeats)
        return
    base = fresh("floor", given.batch, given.repeats)["memory"]
    threads = torch.get_num_threads()
    print(f"ViT-B/16, 224 px, batch {given.batch}, float32, {threads} threads, torch {torch.__version__}")
    print(f"floor: peak {base / 2**20:.0f} MiB\n")
    print("| case | seconds | floor | time ratio | limit | peak MiB | memory ratio | limit |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (time_limit, memory_limit) in LIMITS.items():
        found = fresh(name, given.batch, given.repeats)
        seconds = {key: min(values) for key, values in found["seconds"].items()}
        ratio, memory = seconds["case"] / seconds["floor"], found["memory"] / base
        print(
            f"| {name} | {seconds['case']:.2f} | {seconds['floor']:.2f} | {ratio:.2f} | {time_limit} "
            f"| {found['memory'] / 2**20:.0f} | {memory:.2f} | {memory_limit or '-'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
