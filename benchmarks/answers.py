"""What it costs to explain an answer of a language model, beside one plain forward and backward pass of the same model.

The floor is a frozen model, one forward pass with the logits of the answer's rows and `autograd.grad` of its
log-probability with respect to what enters the first block. Weights are random: cost does not depend on them. The
package flashtrace is measured in the same run where it is installed.

    python benchmarks/answers.py [--tokens 1000 --tokens 5000] [--rows gae --rows ifr] [--json FILE] [--markdown FILE]
    python benchmarks/answers.py --size tiny --device cpu --tokens 60 --answer 8
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail import targets

FLOOR = "forward + gradient"
OURS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "the default": (None, {}),
    "gae": ("gae", {}),
    "gae, memory=low": ("gae", {"memory": "low"}),
    "tokentm": ("tokentm", {}),
    "tokentm, memory=low": ("tokentm", {"memory": "low"}),
    "attn_lrp": ("attn_lrp", {}),
    "soft_ablation": ("soft_ablation", {}),
    "soft_ablation, memory=low": ("soft_ablation", {"memory": "low"}),
    "ifr": ("ifr", {}),
    "flashtrace": ("flashtrace", {}),
}
PACKAGE = {"flashtrace package": False, "flashtrace package, recompute": True}
LONGEST = 8.0
"""Seconds after which nothing is repeated; a first run, which may compile kernels, counts only if it takes longer."""
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
    named = {} if method is None else {"method": method}
    target = targets.continuation(-asked.answer)
    return vitrail.explain(asked.model, {"input_ids": asked.ids}, target=target, **named, **options)


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


def measure(run: Callable[[], object], repeats: int, device: str) -> dict[str, Any]:
    """The median of some runs and the peak of memory; the first run counts only where it is long. Errors are kept."""
    cuda, seconds = device == "cuda", []
    try:
        _reset(device)
        started = time.perf_counter()
        last = run()
        _wait(device)
        first = time.perf_counter() - started
        if first > LONGEST:
            seconds.append(first)
        else:
            _reset(device)
        while not seconds or (len(seconds) < repeats and sum(seconds) < LONGEST):
            started = time.perf_counter()
            last = run()
            _wait(device)
            seconds.append(time.perf_counter() - started)
        known = getattr(last, "provenance", {})
        return {
            "seconds": statistics.median(seconds), "first": first, "runs": len(seconds),
            "bytes": torch.cuda.max_memory_allocated() if cuda else 0,
            "method": getattr(last, "method", None), "recomputed": known.get("recomputed_blocks", 0),
        }  # fmt: skip
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        if cuda:
            torch.cuda.empty_cache()


def _reset(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def line(tokens: int, what: str, one: dict[str, Any], base: dict[str, Any]) -> str:
    """One row of the table."""
    if "failed" in one:
        return f"| {tokens:,} | {what} | {one['failed']} | | |"
    ratio = f"{one['seconds'] / base['seconds']:.2f}" if base.get("seconds") else ""
    again = f" ({one['recomputed']} blocks again)" if one["recomputed"] else ""
    return f"| {tokens:,} | {what}{again} | {one['seconds']:.3f} s | {ratio} | {one['bytes'] / 2**30:.1f} GiB |"


HEAD = "| tokens | what | time | × forward + gradient | peak memory |\n|---:|---|---:|---:|---:|"


def main() -> None:
    """Measure everything, print each row as it comes, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--answer", type=int, default=64, help="tokens of the answer")
    parser.add_argument("--rows", action="append", help="measure these rows only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    model, results, lines = build(given.size, given.device), {}, [HEAD]
    short = torch.randint(3, SIZES[given.size]["vocab_size"], (1, 4 * given.answer), device=given.device)
    for name, run in tasks(Asked(model, short, given.answer)).items():
        if name == FLOOR or not given.rows or name in given.rows:
            measure(run, 1, given.device)  # kernels are compiled here
    print(HEAD, flush=True)
    for tokens in given.tokens or (1000, 5000, 16000, 65536):
        ids = torch.randint(3, SIZES[given.size]["vocab_size"], (1, tokens), device=given.device)
        runs, base = tasks(Asked(model, ids, given.answer)), {}
        for name in [FLOOR, *(n for n in given.rows or runs if n != FLOOR)]:
            found = measure(runs[name], given.repeats, given.device)
            base = base or found
            results[f"{tokens} {name}"] = found
            lines.append(line(tokens, name, found, base))
            print(lines[-1], flush=True)
            if given.json:
                given.json.write_text(json.dumps(results, indent=1))
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
