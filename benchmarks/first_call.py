"""What the first explanation of a model costs: `gae`, in a fresh process, against a warm `gae` of the same model.

    python benchmarks/first_call.py [--rounds 3] [--threads 1 2]

The first call measures the model's structure; later calls know it. Counted is `vitrail.explain` alone. Not counted are
imports of torch, transformers and `vitrail.explain` (`startup.py`), the building of the model, and what torch does once
for each shape: a forward pass and a gradient of the same model run before. Every case runs in a process of its own.
Prints Markdown: the least seconds over the rounds of a plain pass, of a warm call and of the first one, their ratio,
and the ratio for a second model of the same class in the same process. One thread is counted in processor seconds,
which other processes on the machine change little; several threads in wall seconds, which need a quiet machine.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch

SHAPES = {"vit": (1, 8), "bert": (1, 8)}
TOKENS = 128
WARM = 5


def made(name: str) -> torch.nn.Module:
    """A ViT-B/16 or a BERT-base with random weights."""
    import transformers

    torch.manual_seed(0)
    if name == "vit":
        return transformers.ViTForImageClassification(transformers.ViTConfig()).eval()
    return transformers.BertForSequenceClassification(transformers.BertConfig()).eval()


def inputs_of(name: str, batch: int) -> torch.Tensor | dict[str, torch.Tensor]:
    """Pictures of 224 x 224, or texts of 128 tokens."""
    if name == "vit":
        return torch.randn(batch, 3, 224, 224)
    return {"input_ids": torch.randint(1000, 20000, (batch, TOKENS))}


def plain(model: torch.nn.Module, inputs: torch.Tensor | dict[str, torch.Tensor]) -> None:
    """One forward pass, and the gradient of the predicted logit at all parameters."""
    logits = (model(**inputs) if isinstance(inputs, dict) else model(inputs)).logits
    torch.autograd.grad(logits.amax(dim=1).sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True)


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    run()
    return clock() - began


def case(name: str, batch: int, threads: int) -> list[float]:
    """Seconds of a plain pass, of the first call, of a warm one, and of the first call on a second model."""
    from vitrail import explain

    torch.set_num_threads(threads)
    inputs, found = inputs_of(name, batch), []
    for _ in range(2):
        model = made(name)
        plain(model, inputs)
        floor = min(seconds(lambda model=model: plain(model, inputs)) for _ in range(2))
        first = seconds(lambda model=model: explain(model, inputs, method="gae"))
        warm = min(seconds(lambda model=model: explain(model, inputs, method="gae")) for _ in range(WARM))
        found += [floor, first, warm]
    return [found[0], found[1], min(found[2], found[5]), found[4]]


def main() -> None:
    """Run one case and print its numbers, or run all in processes of their own and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--case", nargs=3)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(case(given.case[0], int(given.case[1]), int(given.case[2]))))
        return
    print("| model | batch | threads | forward + gradient s | warm s | first s | first / warm | second model / warm |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, batches in SHAPES.items():
        for batch in batches:
            for threads in given.threads:
                command = [sys.executable, __file__, "--case", name, str(batch), str(threads)]
                runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(given.rounds)]
                floor, first, warm, second = (min(column) for column in zip(*runs, strict=True))
                print(
                    f"| {name} | {batch} | {threads} | {floor:.2f} | {warm:.2f} | {first:.2f} "
                    f"| {first / warm:.2f} | {second / warm:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
