"""Two source trees of the library against each other: warm and first calls, memory, texts of many lengths.

    python benchmarks/engine_times.py OLD_SRC NEW_SRC [--quick] [--only PATTERN] [--batch 8]

For docs/ARCHITECTURE.md and docs/PERFORMANCE.md. `OLD_SRC` and `NEW_SRC` are folders that hold `vitrail`. Each has one
process, which is kept and gets its commands through a pipe, in turns, so that what else the machine does meets both.
Counted is processor time of one thread, as medians; ratios are new / old. All models have random weights.

A *plain* pass is one forward pass and the gradient of the largest logits at the first parameter. A *first* call
explains with a model that nothing is known about: the process forks for it, after one plain pass of the model and after
two models of other classes were explained, so that no import is counted. *Memory* is what the peak of the resident size
in a warm call is above the size before it. *Lengths* is one call for each of 100 texts of different lengths, divided by
as many warm calls of the mean length; *passes* are runs of the model, then runs of a layer divided by the layers.
"""

import argparse
import ctypes
import fnmatch
import gc
import inspect
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch import nn

METHODS = ("gae", "tokentm", "rollout", "auto")
SMALL = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 64}
LENGTHS = range(8, 108)


# Models


def words(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    """Random ids that are no markers."""
    return torch.randint(10, vocabulary - 10, (batch, length), generator=torch.Generator().manual_seed(3))


def text(batch: int, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """A batch of texts without padding."""
    ids = words(batch, length, vocabulary)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vit(batch: int, *, image: int = 224, **options: Any):
    """A Vision Transformer and pictures."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(image_size=image, **options)), torch.randn(batch, 3, image, image)


def bert(batch: int, *, length: int = 128, vocab_size: int = 30522, **options: Any):
    """A BERT that classifies, and texts."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=vocab_size, num_labels=3, **options)
    return BertForSequenceClassification(config), text(batch, length, vocab_size)


def gpt2(batch: int, *, length: int = 128, vocab_size: int = 50257, **options: Any):
    """A GPT-2 and texts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **options)), text(batch, length, vocab_size)


def t5(batch: int):
    """A T5 and two texts."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=4, num_heads=4, vocab_size=200, decoder_start_token_id=0
    )  # fmt: skip
    return T5ForConditionalGeneration(config), {**text(batch, 16, 200), "decoder_input_ids": words(batch, 8, 200)}


def swin(batch: int):
    """A Swin and pictures."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )  # fmt: skip
    return SwinForImageClassification(config), torch.randn(batch, 3, 32, 32)


def llava(batch: int):
    """A LLaVA with four layers in each part, and pictures with texts."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    sizes = {**SMALL, "num_hidden_layers": 4}
    vision = {"model_type": "clip_vision_model", **sizes, "image_size": 24, "patch_size": 6}
    language = {"model_type": "llama", **sizes, "vocab_size": 100, "num_key_value_heads": 2}
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=language, image_token_index=99)
    )  # fmt: skip
    ids = torch.cat([torch.full((batch, 2), 3), torch.full((batch, 16), 99), words(batch, 6, 90)], dim=1)
    pictures = torch.randn(batch, 3, 24, 24)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pictures}


def deberta(batch: int):
    """A DeBERTa with four layers, and texts."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        **{**SMALL, "num_hidden_layers": 4, "hidden_size": 64}, vocab_size=200, num_labels=3, relative_attention=True,
        position_buckets=32, pos_att_type=["p2c", "c2p"], max_position_embeddings=256, norm_rel_ebd="layer_norm",
    )  # fmt: skip
    return DebertaV2ForSequenceClassification(config), text(batch, 57, 200)


TINY = {"image": 32, "patch_size": 8, "num_labels": 10, **SMALL}
SHORT = {"length": 16, "vocab_size": 1000}
CASES: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {
    "ViT-B/16": lambda batch: vit(batch, num_labels=1000),
    "BERT-base": lambda batch: bert(batch),
    "GPT-2": lambda batch: gpt2(batch),
    "host ViT": lambda batch: vit(batch, **TINY),
    "host BERT": lambda batch: bert(batch, **SHORT, **SMALL),
    "host GPT-2": lambda batch: gpt2(
        batch, **SHORT, n_embd=32, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    ),
    "tiny T5": t5,
    "tiny Swin": swin,
    "tiny LLaVA": llava,
    "small DeBERTa": deberta,
    "small BERT": lambda batch: bert(batch, length=57, vocab_size=200, **SMALL),
}
BIG = ("ViT-B/16", "BERT-base", "GPT-2")
STREAMS = ("tiny T5", "tiny Swin", "tiny LLaVA")


# The process of one tree


def plain(model: nn.Module, inputs: Any) -> None:
    """One forward pass, and the gradient of the largest logits at the first parameter."""
    logits = (model(**inputs) if isinstance(inputs, dict) else model(inputs)).logits
    last = logits[:, -1] if logits.ndim == 3 else logits
    torch.autograd.grad(last.amax(dim=-1).sum(), next(model.parameters()))


def seconds(run: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    run()
    return time.process_time() - began


def forked(work: Callable[[], Any]) -> Any:
    """Return what a copy of this process finds; this process stays as it is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # else a collection of all that the parent holds would be counted
        try:
            found: Any = work()
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(answer) if answer else {"error": "the process died"}
    if isinstance(found, dict) and "error" in found:
        raise RuntimeError(found["error"])
    return found


class OtherClassifier(nn.Module):
    """A model whose explanation imports what explanations need."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        """Answer by the mean of the tokens."""
        return self.head(self.encoder(self.embed(ids)).mean(dim=1))


class OtherTranslator(nn.Module):
    """The same with two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.body = nn.Transformer(16, 2, 2, 2, 24, batch_first=True)

    def forward(self, input_ids, decoder_input_ids):
        """Answer at every token of the second text."""
        return self.head(self.body(self.embed(input_ids), self.embed(decoder_input_ids)))


def import_everything() -> None:
    """Explain two models of other classes by every method that is measured."""
    import vitrail

    torch.manual_seed(0)
    pair = {"input_ids": words(1, 5, 50), "decoder_input_ids": words(1, 4, 50)}
    target = vitrail.targets.logit(3, position=2)
    for method in METHODS:
        vitrail.explain(OtherClassifier().eval(), words(1, 5, 50), method, 1)
        vitrail.explain(OtherTranslator().eval(), pair, method, target)


class Measured:
    """One model in one process: nothing is explained here but warm calls."""

    def __init__(self, case: str, batch: int) -> None:
        torch.manual_seed(0)
        model, self.inputs = CASES[case](batch)
        self.model = model.eval()
        plain(self.model, self.inputs)

    def explain(self, method: str, inputs: Any = None) -> object:
        """Explain the predicted class."""
        import vitrail

        return vitrail.explain(self.model, self.inputs if inputs is None else inputs, method)

    def plain(self, method: str) -> float:
        """Return the seconds of a plain pass."""
        return seconds(lambda: plain(self.model, self.inputs))

    def warm(self, method: str) -> float:
        """Return the seconds of a call."""
        return seconds(lambda: self.explain(method))

    def first(self, method: str) -> float:
        """Return the seconds of a first call."""
        return forked(lambda: self.warm(method))

    def memory(self, method: str) -> float:
        """Return the bytes that a warm call needs at its peak."""

        def measure() -> float:
            self.explain(method)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak begins anew
            before = status("VmRSS")
            self.explain(method)
            return status("VmHWM") - before

        return forked(measure)

    def lengths(self, method: str) -> float:
        """Return the cost of texts of many lengths as a multiple of warm calls of their mean length."""

        def measure() -> float:
            texts = [text(1, length, 200) for length in LENGTHS]
            order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(1)).tolist()
            one = text(1, sum(LENGTHS) // len(LENGTHS), 200)
            for _ in range(5):
                self.explain(method, one)
            before = seconds(lambda: [self.explain(method, one) for _ in order[::2]])
            many = seconds(lambda: [self.explain(method, texts[index]) for index in order])
            after = seconds(lambda: [self.explain(method, one) for _ in order[1::2]])
            return many / (before + after)

        return forked(measure)

    def passes(self, method: str) -> list[float]:
        """Return runs of the model and of its layers in a first call, then in a warm one."""

        def measure() -> list[float]:
            layers = [m for held in self.model.modules() if isinstance(held, nn.ModuleList) for m in held]
            kind = next(type(m) for m in layers if any(True for _ in m.parameters()))
            count = sum(type(m) is kind for m in layers)
            found = []
            for _ in range(2):
                runs = count_runs({type(self.model), kind}, lambda: self.explain(method))
                found += [runs[type(self.model)], round(runs[kind] / count, 2)]
            return found

        return forked(measure)


def count_runs(kinds: set[type[nn.Module]], work: Callable[[], object]) -> dict[type[nn.Module], int]:
    """Return how often the code of `forward` of some classes runs, whoever calls it."""
    codes = {inspect.unwrap(kind.forward).__code__: kind for kind in kinds}
    counts = dict.fromkeys(kinds, 0)

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            counts[codes[frame.f_code]] += 1

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def status(name: str) -> int:
    """Return bytes from the status of this process."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


def work() -> None:
    """Answer commands until there are none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import_everything()
    measured = None
    for line in sys.stdin:
        command = json.loads(line)
        if "case" in command:
            measured = None
            gc.collect()
            measured = Measured(command["case"], command["batch"])
            found: Any = True
        else:
            try:
                found = getattr(measured, command["do"])(command["method"])
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


# Both trees


class Tree:
    """The process of one source tree."""

    def __init__(self, source: str) -> None:
        path = os.path.abspath(source)
        if not os.path.isdir(os.path.join(path, "vitrail")):
            raise SystemExit(f"{source} holds no folder vitrail: name the folder that does, such as ../old/src")
        around = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, os.path.abspath(__file__), "--worker"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=around, bufsize=1
        )

    def ask(self, **command: Any) -> Any:
        """Return the answer to a command."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("a process ended: its last words are above")
        found = json.loads(answer)
        if isinstance(found, dict):
            raise SystemExit(f"{command}: {found['error']}")
        return found


def in_turns(trees: list[Tree], repeats: int, **command: Any) -> list[list[Any]]:
    """Return the answers of both trees, asked in turns: old, new, new, old, ..."""
    answers: list[list[Any]] = [[], []]
    for turn in range(repeats):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            answers[which].append(trees[which].ask(**command))
    return answers


def row(what: str, old: list[float], new: list[float], plain_pass: float | None = None, unit: float = 1e3) -> None:
    """Print one line of the table: medians, their ratio, the ratio of the least, and multiples of a plain pass."""
    a, b = median(old), median(new)
    least = f"{min(new) / min(old):.3f}" if min(old) else "-"
    multiples = f"{a / plain_pass:.2f} | {b / plain_pass:.2f}" if plain_pass else "- | -"
    ratio = f"{b / a:.3f}" if a else "-"
    print(f"| {what} | {a * unit:.2f} | {b * unit:.2f} | {ratio} | {least} | {multiples} |", flush=True)


def measure_case(trees: list[Tree], case: str, batch: int, *, quick: bool) -> None:
    """Print all lines of one model."""
    big = case in BIG
    for tree in trees:
        tree.ask(case=case, batch=batch)
    few, many = ((3, 15) if quick else (9, 51)) if not big else ((3, 3) if quick else (5, 11))
    name = f"{case} b{batch}"
    plains = in_turns(trees, many, do="plain", method="")
    basis = median(plains[0] + plains[1])
    row(f"{name} plain, ms", *plains, basis)
    firsts = ("gae",) if big or case not in STREAMS or quick else ("gae", "tokentm")
    for method in firsts:
        row(f"{name} first {method}, ms", *in_turns(trees, 1 if big else few, do="first", method=method), basis)
    if case not in BIG:
        (old,), (new,) = in_turns(trees, 1, do="passes", method="gae")
        print(f"| {name} passes gae: first, its layers, warm, its layers | {old} | {new} | | | | |", flush=True)
    memories = ("gae", "tokentm") if big else ()
    for method in memories:
        row(f"{name} memory {method}, MiB", *in_turns(trees, 1, do="memory", method=method), unit=2**-20)
    for method in ("gae",) if case in STREAMS and quick else METHODS[:3] if case in STREAMS else METHODS:
        repeats = max(3, many // 3) if method == "auto" else many
        for tree in trees:
            tree.ask(do="warm", method=method)
        row(f"{name} warm {method}, ms", *in_turns(trees, repeats, do="warm", method=method), basis)


def measure_lengths(trees: list[Tree], case: str, *, quick: bool) -> None:
    """Print the cost of texts of many lengths."""
    for tree in trees:
        tree.ask(case=case, batch=1)
    row(f"{case} 100 lengths, multiple", *in_turns(trees, 1 if quick else 3, do="lengths", method="gae"), unit=1)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", help="the old and the new folder that holds vitrail")
    parser.add_argument("--batch", type=int, help="pictures of ViT-B/16 (8; 1 with --quick)")
    parser.add_argument("--only", default="*", help="names of cases, such as 'host*'")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, batches of one")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work()
    if len(given.sources) != 2:
        parser.error("name two source folders: the old and the new one")
    trees = [Tree(source) for source in given.sources]
    batches = {"ViT-B/16": given.batch or (1 if given.quick else 8), "BERT-base": 1 if given.quick else 4}
    print("| what | old | new | new / old | of the least | old x plain | new x plain |\n|---|---|---|---|---|---|---|")
    for case in CASES:
        if not fnmatch.fnmatch(case, given.only) or (given.quick and case == "small BERT"):
            continue
        if case.startswith("small"):
            measure_lengths(trees, case, quick=given.quick)
        else:
            measure_case(trees, case, batches.get(case, 1), quick=given.quick)
    return None


if __name__ == "__main__":
    main()
