"""What it costs to explain an answer of a language model, beside one plain forward and backward pass of the same model.

The floor is a frozen model, one forward pass with the logits of the answer's rows and `autograd.grad` of its
log-probability with respect to what enters the first block. Weights are random: cost does not depend on them. The
package flashtrace is measured in the same run where it is installed.

    python benchmarks/answers.py [--tokens 1000 --tokens 5000] [--rows gae --rows ifr] [--json FILE] [--markdown FILE]
    python benchmarks/answers.py --size tiny --device cpu --tokens 60 --answer 8

A row that fails, runs out of memory or takes longer than its cap is kept with the reason, and the next one begins. With
`--json` every row is written as soon as it is measured, and the same command measures the rows that are missing. After
an error that makes the GPU unusable the program ends with status 3: run it again.
"""

import argparse
import gc
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail import targets

FLOOR = "forward + gradient"
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "gae, memory=low": ("gae", {"memory": "low"}),
    "gae": ("gae", {}),
    "ifr": ("ifr", {}),
    "flashtrace": ("flashtrace", {}),
    "tokentm, memory=low": ("tokentm", {"memory": "low"}),
    "tokentm": ("tokentm", {}),
    "attn_lrp": ("attn_lrp", {}),
    "soft_ablation": ("soft_ablation", {}),
    "soft_ablation, memory=low": ("soft_ablation", {"memory": "low"}),
}
"""In the order in which they are measured: what costs least first."""
PACKAGE = {"flashtrace package": False, "flashtrace package, recompute": True}
BROKEN = 3
"""Status of a program that has to be started again."""
LONGEST = 8.0
"""Seconds of runs after which nothing is repeated."""
COLD = 30.0
"""A first run counts only if it takes longer: it compiles kernels, measures the model and asks for memory."""
SIZES: dict[str, dict[str, int]] = {
    "8B": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "tiny": {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 131072,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One model, and a text whose last tokens are the answer."""

    model: nn.Module
    ids: Tensor
    answer: int

    @property
    def rows(self) -> Tensor:
        """The rows that predict the answer."""
        length = self.ids.shape[1]
        return torch.arange(length - self.answer - 1, length - 1, device=self.ids.device)


def build(size: str, device: str) -> nn.Module:
    """A Llama with random weights in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**SIZES[size]))
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(requires_grad=False)


def floor(asked: Asked) -> None:
    """One forward pass, one gradient down to the first block."""
    roots: list[Tensor] = []

    def cut(module: nn.Module, args: tuple) -> tuple:
        roots.append(args[0].detach().requires_grad_())
        return (roots[0], *args[1:])

    blocks = next(m for m in asked.model.modules() if isinstance(m, nn.ModuleList))
    handle = blocks[0].register_forward_pre_hook(cut)
    try:
        logits = asked.model(input_ids=asked.ids, logits_to_keep=asked.rows, use_cache=False).logits.float()
    finally:  # memory may run out
        handle.remove()
    said = logits.log_softmax(dim=2).gather(2, asked.ids[:, -asked.answer :, None])
    torch.autograd.grad(said.sum(), roots)


def ours(asked: Asked, name: str) -> vitrail.Attribution:
    """The whole answer as one unit."""
    method, options = OURS[name]
    target = targets.continuation(-asked.answer)
    return vitrail.explain(asked.model, {"input_ids": asked.ids}, method, target, **options)


def package(asked: Asked, *, recompute: bool) -> object:
    """The released package on the same tokens, written as words of a tokenizer whose words are numbers."""
    from flashtrace import FlashTrace  # pyright: ignore[reportMissingImports]

    words = [f"w{i}" for i in asked.ids[0].tolist()]
    cut = len(words) - asked.answer
    asked.model.set_attn_implementation("sdpa" if recompute else "eager")
    try:
        tracer = FlashTrace(asked.model, tokenizer(asked.model.config.vocab_size), recompute_attention=recompute)
        return tracer.trace(prompt=" ".join(words[:cut]), target=" ".join(words[cut:]))
    finally:
        asked.model.set_attn_implementation("sdpa")


def tokenizer(size: int) -> Any:
    """One word for each id."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0", eos_token="w1", pad_token="w2")


def tasks(asked: Asked) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the floor first."""
    found: dict[str, Callable[[], object]] = {FLOOR: lambda: floor(asked)}
    for name in OURS:
        found[name] = lambda name=name: ours(asked, name)
    if find_spec("flashtrace") is not None:
        for name, recompute in PACKAGE.items():
            found[name] = lambda recompute=recompute: package(asked, recompute=recompute)
    return found


class TooLongError(Exception):
    """A row took longer than its cap."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise if what is inside takes longer; noticed when Python runs again after a kernel or a wait."""

    def stop(*_: object) -> None:
        raise TooLongError(f"longer than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def measure(run: Callable[[], object], repeats: int, device: str, cap: float) -> dict[str, Any]:
    """The median of some runs and the peak of memory, or why there is none."""
    try:
        with at_most(cap):
            return _timed(run, repeats, device)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except TooLongError as error:
        return {"failed": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def _timed(run: Callable[[], object], repeats: int, device: str) -> dict[str, Any]:
    """Seconds and bytes; the first run counts only where it is long."""
    cuda, seconds = device == "cuda", []
    _reset(device)
    first, last = _seconds(run, device)
    if first > COLD:
        seconds.append(first)
    else:
        _reset(device)
    while not seconds or (len(seconds) < repeats and sum(seconds) < LONGEST):
        del last
        one, last = _seconds(run, device)
        seconds.append(one)
    known = getattr(last, "provenance", {})
    return {
        "seconds": statistics.median(seconds), "first": first, "runs": len(seconds),
        "bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "method": getattr(last, "method", None), "recomputed": known.get("recomputed_blocks", 0),
    }  # fmt: skip


def _seconds(run: Callable[[], object], device: str) -> tuple[float, object]:
    started = time.perf_counter()
    last = run()
    _wait(device)
    return time.perf_counter() - started, last


def _reset(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _usable(device: str) -> bool:
    """Whether the GPU still computes; an illegal access ends that for the process."""
    try:
        _wait(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


def line(tokens: int, what: str, one: dict[str, Any], base: dict[str, Any]) -> str:
    """One row of the table."""
    if "failed" in one:
        return f"| {tokens:,} | {what} | {one['failed']} | | |"
    ratio = f"{one['seconds'] / base['seconds']:.2f}" if base.get("seconds") else ""
    again = f" ({one['recomputed']} blocks again)" if one["recomputed"] else ""
    return f"| {tokens:,} | {what}{again} | {one['seconds']:.3f} s | {ratio} | {one['bytes'] / 2**30:.1f} GiB |"


HEAD = "| tokens | what | time | × forward + gradient | peak memory |\n|---:|---|---:|---:|---:|"


def plan(lengths: list[int], rows: list[str] | None) -> list[tuple[int, str]]:
    """What is measured, in order: ours at all lengths, then the package, which takes longest."""
    ours_first = [FLOOR, *(name for name in OURS if not rows or name in rows)]
    package_rows = [name for name in PACKAGE if find_spec("flashtrace") and (not rows or name in rows)]
    return [(n, row) for some in (ours_first, package_rows) for n in lengths for row in some]


def measure_all(given: argparse.Namespace) -> int:
    """Measure what is not known yet, print each row as it comes, and write all of them."""
    known: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    missing = [(n, row) for n, row in plan(given.tokens, given.rows) if f"{n} {row}" not in known]
    print(HEAD, flush=True)
    begun, warm, model = time.monotonic(), set[str](), build(given.size, given.device)
    for tokens, row in missing:
        if time.monotonic() - begun > 60 * given.minutes:
            print(f"{given.minutes} minutes are over: {tokens:,} tokens, {row} and what follows is not measured.")
            break
        known[f"{tokens} {row}"] = {"failed": "the program ended here"}  # in case it does
        _write(given.json, known)
        if row not in warm:  # kernels are compiled here
            measure(_task(model, 4 * given.answer, row, given), 1, given.device, given.cap)
            warm.add(row)
        found = measure(_task(model, tokens, row, given), given.repeats, given.device, given.cap)
        known[f"{tokens} {row}"] = found
        _write(given.json, known)
        print(line(tokens, row, found, known.get(f"{tokens} {FLOOR}", {})), flush=True)
        if not _usable(given.device):
            return BROKEN
    return 0


def _task(model: nn.Module, tokens: int, row: str, given: argparse.Namespace) -> Callable[[], object]:
    words = torch.Generator(device=given.device).manual_seed(tokens)
    size = (1, tokens)
    ids = torch.randint(3, SIZES[given.size]["vocab_size"], size, generator=words, device=given.device)
    return tasks(Asked(model, ids, given.answer))[row]


def _write(path: Path | None, known: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(known, indent=1))


def written(path: Path, lengths: list[int], rows: list[str] | None) -> str:
    """The table of all rows that are known."""
    known = json.loads(path.read_text())
    order = [(n, row) for n, row in plan(lengths, rows) if f"{n} {row}" in known]
    order.sort(key=lambda one: one[0])
    return "\n".join([HEAD, *(line(n, row, known[f"{n} {row}"], known.get(f"{n} {FLOOR}", {})) for n, row in order)])


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--answer", type=int, default=64, help="tokens of the answer")
    parser.add_argument("--rows", action="append", choices=[*OURS, *PACKAGE], help="measure these rows only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cap", type=float, default=90.0, help="seconds that one row may take, all its runs together")
    parser.add_argument("--minutes", type=float, default=60.0, help="no row begins after these")
    parser.add_argument("--json", type=Path, help="where every row is written; rows that are there are not repeated")
    parser.add_argument("--markdown", type=Path, help="where the table is written; needs --json")
    given = parser.parse_args()
    given.tokens = given.tokens or [1000, 5000, 16000, 65536]
    if given.markdown and not given.json:
        parser.error("--markdown needs --json")
    status = measure_all(given)
    if given.markdown:
        given.markdown.write_text(written(given.json, given.tokens, given.rows) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
