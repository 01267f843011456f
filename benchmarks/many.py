"""How many pictures a second a whole data set is explained at, beside the explanation alone.

    python benchmarks/many.py [--method auto] [--pictures 2048] [--batch 64] [--tiny] [--memory]
    python benchmarks/many.py --workers 2 [--part 1024]

The pictures are random and in memory, so that reading files is not measured: a batch is copied to the device,
explained, and its rows are written to Parquet. On CUDA the model is ViT-B/16 in bfloat16, else a small one in float32.
With `--workers`, the same by one and by several workers of Ray, each with one thread, by the times at which part files
were written, without the first quarter: starting Ray and its workers takes longer than the work.
With `--memory`, the size of the process on the way.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from flash import _ready, _vit
from torch import Tensor, nn

import vitrail
from vitrail.api.explainer import CALLS_BEFORE_CAPTURE, Explainer
from vitrail.api.many import Batch


def timed(model: nn.Module, batches: list[Batch], method: str, folder: str, **how: object) -> float:
    """Seconds of one data set."""
    started = time.perf_counter()
    vitrail.explain_many(model, batches, method, output=folder, progress=False, **how)
    return time.perf_counter() - started


def pictures(x: Tensor) -> dict[str, Tensor]:
    """One batch, as a loader would give it."""
    return {"pixel_values": x.clone()}


def rate(model: nn.Module, batches: list[Batch], method: str, **how: object) -> float:
    """Pictures a second into a data set, by the difference of a long and a short run."""
    short = batches[: max(1, len(batches) // 8)]
    with tempfile.TemporaryDirectory() as folder:
        timed(model, batches[:1], method, f"{folder}/first", **how)
        seconds = [timed(model, some, method, f"{folder}/{len(some)}", **how) for some in (short, batches)]
    return sum(len(one.names) for one in batches[len(short) :]) / (seconds[1] - seconds[0])


def steady_rate(model: nn.Module, batches: list[Batch], method: str, **how: object) -> float:
    """Pictures a second into a data set, from when a quarter of its part files was written to the last of them."""
    with tempfile.TemporaryDirectory() as folder:
        timed(model, batches, method, f"{folder}/all", **how)
        written = sorted(part.stat().st_mtime_ns for part in Path(folder).glob("all/part-*.parquet"))
    first = len(written) // 4
    return (len(written) - 1 - first) * how["part_size"] / (1e-9 * (written[-1] - written[first]))


def alone(model: nn.Module, x: Tensor, method: str, count: int) -> float:
    """Pictures a second of the explanation alone."""
    explainer, device = Explainer(model, method), next(model.parameters()).device
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        explainer(pictures(x.to(device)))
    started = time.perf_counter()
    for _ in range(count):
        explainer(pictures(x.to(device)))
    return count * len(x) / (time.perf_counter() - started)


def watched(batches: list[Batch]) -> Iterator[Batch]:
    """The batches; the size of the process is printed ten times on the way."""
    every = max(1, len(batches) // 10)
    for number, one in enumerate(batches):
        if number % every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            print(f"{number * len(one.names)} inputs: {pages * 4096 / 2**20:.0f} MiB", flush=True)
        yield one


def main() -> None:
    """Explain alone, then into a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--pictures", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers")
    parser.add_argument("--workers", type=int, help="compare one worker of Ray with so many")
    parser.add_argument("--part", type=int, default=1024, help="inputs of a part file, made by one worker")
    parser.add_argument("--memory", action="store_true", help="print the size of the process on the way")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size, shape = (32, (32, 16, 64, 2)) if given.tiny else (224, (224, 16, 768, 12))
    model = _ready(lambda attention: _vit(*shape, attention), "sdpa", device, dtype)
    x = torch.randn(given.batch, 3, size, size, dtype=dtype)
    count = given.pictures // given.batch
    if given.workers and given.pictures < 8 * given.workers * given.part:
        parser.error(f"--workers {given.workers} needs at least {8 * given.workers * given.part} pictures")
    batches = [Batch([str(i) for i in range(given.batch)], partial(pictures, x)) for _ in range(count)]
    if given.memory:
        with tempfile.TemporaryDirectory() as folder:
            vitrail.explain_many(model, watched(batches), given.method, output=folder, progress=False)
    elif given.workers:
        torch.set_num_threads(1)
        how = {"engine": "ray", "part_size": given.part}
        one = steady_rate(model, batches, given.method, workers=1, **how)
        print(f"1 worker {one:.0f} pictures/s", flush=True)
        several = steady_rate(model, batches, given.method, workers=given.workers, **how)
        print(f"{given.workers} workers {several:.0f} pictures/s, {several / one:.2f} x")
    else:
        own, both = alone(model, x, given.method, count), rate(model, batches, given.method)
        print(f"{given.method}: alone {own:.0f} pictures/s, into a data set {both:.0f}, {100 * both / own:.0f} %")


if __name__ == "__main__":
    main()
