"""How many pictures a second a whole data set is explained at, beside the explanation alone.

    python benchmarks/many.py [--method auto] [--pictures 2048] [--batch 64] [--tiny]

The pictures are random and in memory, so that reading files is not measured: a batch is copied to the device,
explained, and its rows are written to Parquet. On CUDA the model is ViT-B/16 in bfloat16, else a small one in float32.
"""

import argparse
import tempfile
import time

import torch
from flash import _ready, _vit

import vitrail
from vitrail.many import Batch, BatchExplainer


def timed(model: torch.nn.Module, batches: list[Batch], method: str, folder: str) -> float:
    """Seconds of one data set."""
    started = time.perf_counter()
    vitrail.explain_many(model, batches, method, output=folder, progress=False)
    return time.perf_counter() - started


def main() -> None:
    """Explain alone, then into a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--pictures", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size, shape = (32, (32, 16, 64, 2)) if given.tiny else (224, (224, 16, 768, 12))
    model = _ready(lambda attention: _vit(*shape, attention), "sdpa", device, dtype)
    x = torch.randn(given.batch, 3, size, size, dtype=dtype)
    explain = BatchExplainer(model, given.method, None, {})
    names = [str(i) for i in range(given.batch)]
    count = given.pictures // given.batch
    explain({"pixel_values": x})
    started = time.perf_counter()
    for _ in range(count):
        explain({"pixel_values": x})
    alone = count * given.batch / (time.perf_counter() - started)
    batches = [Batch(names, lambda: {"pixel_values": x.clone()}) for _ in range(count + 1)]
    with tempfile.TemporaryDirectory() as folder:  # what a run takes once is in both, and not in their difference
        seconds = [
            timed(model, some, given.method, f"{folder}/{len(some)}") for some in (batches[:1], batches[:2], batches)
        ]
    both = (count - 1) * given.batch / (seconds[2] - seconds[1])
    print(f"{given.method}: alone {alone:.0f} pictures/s, into a data set {both:.0f}, {100 * both / alone:.0f} %")


if __name__ == "__main__":
    main()
