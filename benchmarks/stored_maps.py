"""The maps of many small models, kept to see what a change of the library changes: see docs/ARCHITECTURE.md.

    python benchmarks/stored_maps.py store FOLDER [--only PATTERN] [--part 1/2]
    python benchmarks/stored_maps.py compare OLD_FOLDER NEW_FOLDER [--only PATTERN] [--equal]
    python benchmarks/stored_maps.py hashes FOLDER
    python benchmarks/stored_maps.py check FOLDER

`store` explains the models of docs/models.md by four methods, and the models of the tests by all methods, for several
targets, presets and kinds of input. It writes one file for each model and skips a model whose file is there. The models
have random weights from fixed seeds; nothing is downloaded. Results are kept bit for bit, refusals with their class and
words. `--part 1/2` takes every second model, so that two processes can share the work. It takes 15 minutes of one
core. `hashes` writes short hashes of a folder to tests/stored_maps.tsv, and `check` compares a folder with that file.
The hashes hold for one kind of processor and the versions named in the file; `compare` needs two folders and says how
far two maps are apart.
"""

import argparse
import copy
import fnmatch
import hashlib
import json
import logging
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
HASHES = ROOT / "tests" / "stored_maps.tsv"

MAIN = ("auto", "gae", "tokentm", "rollout", "attcat", "attn_lrp", "grad_cam", "le_grad")
"""Methods for further targets and inputs: walks of each kind, rules, and methods that read one layer or all."""
SHORT = ("auto", "gae", "tokentm", "rollout")
STREAMED = ("auto", "gae", "complete_gradient", "tokentm", "rollout", "attn_lrp", "input_x_gradient", "attcat")
"""Methods that explain several streams, and one that refuses them."""
ON_STREAMS = (*STREAMED, "absolute_gradient", "conservative_lrp", "integrated_gradients", "consensus", "lrp", "bi_head")
"""All methods that explain several streams, and one that refuses them of each kind."""
SOURCES = [(1, 3), (3, 5)]
OPTIONS = {
    "context_cite": {"sources": SOURCES, "ablations": 6},
    "sentence_drop": {"sources": SOURCES},
    "soft_ablation": {"sources": SOURCES},
    "vit_cx": {"threshold": 0.7},
    "tis": {"clusters": 4},
    **{name: {"steps": 2} for name in ("bi_head", "bi_token", "tam", "integrated_gradients")},
    "dix": {"steps": 1},
}
"""Options with which methods run a model less often, and the sentences of texts that are only token ids."""
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""How far a score may be from the stored one, relative to the largest."""
UNSAID = {"seconds", "shared_seconds", "model_hash", "versions"}
"""What a result says of the moment and the machine."""
EVERY_STREAMED = 8
"""One of so many models with several streams is explained by all methods: most refuse it, each after a first pass."""


@dataclass(frozen=True)
class Question:
    """One explanation of a model.

    Args:
        label: the target and the kind of input, as it is stored.
        methods: the methods that explain it.
        target: what is explained.
        given: further keywords of the call.
        change: makes the model and the inputs that are explained, of those of the subject.
    """

    label: str
    methods: tuple[str, ...]
    target: Any
    given: dict[str, Any] = field(default_factory=dict)
    change: Callable[[nn.Module, Any], tuple[nn.Module, Any]] | None = None


@dataclass(frozen=True)
class Subject:
    """A model and what is asked about it.

    Args:
        name: the set and the model, `tiny/hf_bert`.
        build: makes the model and its inputs.
        questions: what is explained, in this order.
        around: what the caller is inside of.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    questions: Callable[[nn.Module, Any], list[Question]]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


# Inputs


def each(inputs: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
    """Change every tensor of the inputs, by its name; a single tensor is called `x`."""
    if not isinstance(inputs, dict):
        return change("x", inputs)
    return {name: change(name, x) if isinstance(x, Tensor) else x for name, x in inputs.items()}


def other_values(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """The same form with other values: samples in reverse order, other words where a word is none of the markers."""

    def change(name: str, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x.flip(0)
        ordinary = (x >= 4) & (x < 34) & (x.amax() > 4)
        return torch.where(ordinary, x + 1, x) if "ids" in name or name == "x" else x

    return model, each(inputs, change)


def padded(ends: tuple[int, int], model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A text with padding before or after it."""
    return model, each(inputs, lambda _, x: nn.functional.pad(x, ends))


def mixed_lengths(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """The first text is two words shorter than the others."""

    def change(_: str, x: Tensor) -> Tensor:
        x = x.clone()
        x[0, -2:] = 0
        return x

    return model, each(inputs, change)


def longer(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A text with three words of its middle again."""
    return model, each(inputs, lambda _, x: torch.cat([x[:, :5], x[:, 2:5], x[:, 5:]], dim=1))


def as_type(dtype: torch.dtype, model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A copy of the model in another precision."""
    return copy.deepcopy(model).to(dtype), each(inputs, lambda _, x: x.to(dtype) if x.is_floating_point() else x)


def frozen(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A copy of the model without gradients of its weights."""
    return copy.deepcopy(model).requires_grad_(requires_grad=False), inputs


def is_text(inputs: Any) -> bool:
    """Return True if all inputs are whole numbers `[b, t]`."""
    found = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    return all(not x.is_floating_point() and x.ndim == 2 for x in found)


# Targets


def some_logits(logits: Tensor) -> Tensor:
    """A scalar that no target names: every third logit, wherever it stands."""
    return logits.flatten(1)[:, 1::3].sum(dim=1)


def whole_table() -> tuple[str, ...]:
    """All methods, the default first."""
    import vitrail

    return ("auto", *vitrail.METHODS)


def with_presets(target: Any) -> list[Question]:
    """The presets that differ from the recommended one, for each method that has them."""
    import vitrail

    found = []
    for preset in ("paper", "official"):
        names = []
        for name, method in vitrail.METHODS.items():
            given = dict(method.presets.get(preset, {}))
            if given and given != dict(method.presets.get("recommended", method.presets.get("paper", {}))):
                names.append(name)
        found.append(Question(f"int #{preset}", tuple(names), target, {"preset": preset}))
    return found


def further_inputs(inputs: Any, target: Any, label: str, methods: tuple[str, ...] = MAIN) -> list[Question]:
    """The same target on other inputs, and on the model in another state."""
    found = [Question(f"{label} @other values", methods, target, change=other_values)]
    if is_text(inputs):
        found += [
            Question(f"{label} @padded right", methods, target, change=partial(padded, (0, 3))),
            Question(f"{label} @padded left", methods, target, change=partial(padded, (3, 0))),
            Question(f"{label} @mixed lengths", methods, target, change=mixed_lengths),
            Question(f"{label} @longer", methods, target, change=longer),
        ]
    found += [
        Question(f"{label} @low memory", methods, target, {"memory": "low"}),
        Question(f"{label} @frozen", methods, target, change=frozen),
        Question(f"{label} @float32", methods, target, change=partial(as_type, torch.float32)),
    ]
    return found


def of_classes(model: nn.Module, inputs: Any, *, complete: bool = True) -> list[Question]:
    """Questions for a classifier of at least three classes, or a language model."""
    from vitrail import targets

    every, main = whole_table(), whole_table() if complete else MAIN
    found = [
        Question("int", every, 1),
        Question("none", main, None),
        Question("each", main, [0, 2]),
        Question("probability", main, targets.probability(1)),
        Question("difference", main, targets.difference(1, 2)),
        Question("function", main, some_logits),
    ]
    if "LM" in type(model).__name__:
        found += [
            Question("next_token", every, targets.next_token(7)),
            Question("continuation", every, targets.continuation(6)),
            Question("log_odds", MAIN, targets.continuation(5, 8, scalar="log_odds")),
            Question("position", MAIN, targets.logit(7, position=4)),
        ]
    return [*found, *with_presets(1), *further_inputs(inputs, 1, "int")]


def of_streams(target: Any, methods: tuple[str, ...], model: nn.Module, inputs: Any) -> list[Question]:
    """Questions for a model with several streams: its own target by all methods, others by some."""
    from vitrail import targets

    at = {"position": target.position} if getattr(target, "position", None) is not None else {}
    found = [
        Question("own", methods, target),
        Question("none", STREAMED, None),
        Question("probability", STREAMED, targets.probability(1, **at)),
        Question("difference", SHORT, targets.difference(0, 1)),
        Question("function", SHORT, some_logits),
    ]
    if at or isinstance(target, targets.Target):
        found += [
            Question("next_token", SHORT, targets.next_token(7)),
            Question("continuation", SHORT, targets.continuation(-3)),
        ]
    return [
        *found,
        Question("own @other values", STREAMED, target, change=other_values),
        Question("own @low memory", SHORT, target, {"memory": "low"}),
        Question("own @frozen", SHORT, target, change=frozen),
    ]


# Subjects


def documented_models() -> Iterator[Subject]:
    """The models of docs/models.md."""
    from any_new_models import TABLE
    from any_outcomes import documented, prepared

    for name in documented():
        entry = TABLE[name]
        target = entry.target(1)[0]

        def questions(model: nn.Module, inputs: Any, target: Any = target) -> list[Question]:
            return [Question("own", SHORT, target)]

        yield Subject(f"models/{name}", partial(prepared, entry), questions)


def tiny_models() -> Iterator[Subject]:
    """One model of each known family."""
    from tiny_models import MODELS, tiny

    for name, made in MODELS.items():
        yield Subject(f"tiny/{name}", lambda name=name, made=made: (tiny(name), made.inputs()), of_classes)


def stream_models() -> Iterator[Subject]:
    """Models with several streams."""
    from stream_models import TABLE, prepared

    for place, (name, case) in enumerate(TABLE.items()):
        methods = ON_STREAMS if place % EVERY_STREAMED else whole_table()
        yield Subject(f"streams/{name}", partial(prepared, case), partial(of_streams, case.target, methods))


def wrapped_models() -> Iterator[Subject]:
    """Models as users have them."""
    from wrapped_models import CASES

    def questions(model: nn.Module, inputs: Any) -> list[Question]:
        return [Question("int", MAIN, 1), Question("int @other values", SHORT, 1, change=other_values)]

    for name, case in CASES.items():
        for base in case.bases:
            yield Subject(
                f"wrapped/{name}.{base}",
                lambda case=case, base=base: (case.model(base), case.inputs(base)),
                questions,
                lambda case=case: both(case.around(), case.only()),
            )


def both(*contexts: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Several contexts as one."""
    from contextlib import ExitStack

    stack = ExitStack()
    for context in contexts:
        stack.enter_context(context)
    return stack


def further_models() -> Iterator[Subject]:
    """Attention written by hand, answers in a text, and encoders."""
    import transformers
    from plain_vit import plain_vit
    from tiny_models import BERT, IMAGE, MODELS, VOCABULARY, WIDTH

    from vitrail import targets

    yield Subject("further/plain_vit", plain_vit, partial(of_classes, complete=False))

    def made(name: str, options: dict[str, Any], inputs: Any) -> tuple[nn.Module, Any]:
        torch.manual_seed(3)
        kind = getattr(transformers, name)
        model = kind(kind.config_class(**options)).double().eval()
        with torch.no_grad():
            for x in model.parameters():
                x.add_(0.1 * torch.randn_like(x))
        return model, inputs

    def spans(model: nn.Module, inputs: Any) -> list[Question]:
        plain, absolute = targets.answer_span(), targets.answer_span(absolute=True)
        return [
            Question("answer_span", whole_table(), plain),
            Question("answer_span absolute", MAIN, absolute),
            Question("none", MAIN, None),
            *further_inputs(inputs, plain, "answer_span", SHORT),
        ]

    def likeness(model: nn.Module, inputs: Any) -> list[Question]:
        other = torch.randn(24, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        pooled = [Question(f"similarity {p}", MAIN, targets.similarity(other, pooling=p)) for p in ("first", "last")]
        asked = targets.similarity(other)
        found = [Question("similarity", whole_table(), asked), *pooled, Question("none", MAIN, None)]
        return [*found, *further_inputs(inputs, asked, "similarity", SHORT)]

    words, pictures = MODELS["hf_bert"].inputs(), MODELS["hf_vit"].inputs()
    text = {**WIDTH, **VOCABULARY, "max_position_embeddings": 20}
    small = {"vocab_size": 60, "dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 20}
    for name, options, inputs, questions in (
        ("BertForQuestionAnswering", text, words, spans),
        ("DistilBertForQuestionAnswering", small, words, spans),
        ("ModernBertForQuestionAnswering", {**text, "local_attention": 4}, words, spans),
        ("BertForTokenClassification", BERT, words, partial(of_positions, 4)),
        ("BertForMaskedLM", text, words, partial(of_positions, 4)),
        ("BertModel", text, words, likeness),
        ("ViTModel", {**WIDTH, **IMAGE}, pictures, likeness),
    ):
        yield Subject(f"further/{name}", partial(made, name, options, inputs), questions)


def of_positions(position: int, model: nn.Module, inputs: Any) -> list[Question]:
    """Questions for a model that answers at every token."""
    from vitrail import targets

    return [
        Question("logit", whole_table(), targets.logit(1, position=position)),
        Question("probability", MAIN, targets.probability(1, position=position)),
        Question("last", MAIN, targets.logit(1, position=-1)),
        Question("none", MAIN, None),
        Question("function", MAIN, some_logits),
    ]


def subjects() -> list[Subject]:
    """All models, the small sets first."""
    catalogue = [*tiny_models(), *further_models(), *stream_models(), *wrapped_models()]
    return [*catalogue, *documented_models()]


# Storing


def tensors_of(found: Any) -> dict[str, Tensor]:
    """All numbers of an attribution, by name."""
    held = {}
    for name in ("scores", "own", "readout", "valid", "pixels", "layers", "heads"):
        if (x := getattr(found, name)) is not None:
            held[name] = x.detach().contiguous()
    for name, x in found.provenance.items():
        if isinstance(x, (list, tuple)) and x and all(isinstance(number, float) for number in x):
            held[f"said.{name}"] = torch.tensor(x, dtype=torch.float64)
    for stream, one in found.streams.items():
        held |= {f"{stream}.{name}": x for name, x in tensors_of(one).items()}
    return held


def words_of(found: Any) -> dict[str, Any]:
    """Everything an attribution says that is no number of a map: names, grids, options, what was assumed."""
    said = {name: plain(x) for name, x in sorted(found.provenance.items()) if name not in UNSAID}
    said = {name: x for name, x in said.items() if not (isinstance(x, list) and x and isinstance(x[0], float))}
    return {
        "method": found.method,
        "kind": found.kind,
        "signed": found.signed,
        "preset": found.preset,
        "options": plain(found.options),
        "target": str(found.target) if hasattr(found.target, "name") else "a function",
        "grid": plain(found.grid),
        "size": plain(found.size),
        "tokens": plain(found.tokens),
        "said": said,
        "streams": {name: words_of(one) for name, one in found.streams.items()},
    }


def plain(x: Any) -> Any:
    """A value as JSON keeps it."""
    if hasattr(x, "items"):
        return {str(name): plain(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return x if x is None or isinstance(x, (bool, int, float, str)) else without_addresses(str(x))


def without_addresses(words: str) -> str:
    """Words without the addresses of objects."""
    return re.sub(r"0x[0-9a-f]+", "0x", words)


def explain(question: Question, method: str, model: nn.Module, inputs: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The numbers and words of one explanation, or the class and words of its refusal."""
    import vitrail
    from vitrail.errors import VitrailError

    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    options = OPTIONS.get(method, {}) if "preset" not in question.given else {}
    try:
        found = vitrail.explain(model, inputs, method, question.target, **question.given, **options)
    except VitrailError as error:
        return {}, {"refused": type(error).__name__, "words": without_addresses(str(error))}
    except Exception as error:
        traceback.print_exc(limit=-3)
        return {}, {"refused": f"crashed: {type(error).__name__}", "words": without_addresses(str(error))[:500]}
    return tensors_of(found), words_of(found)


def store_subject(subject: Subject, path: Path) -> int:
    """Explain a model in every way and write its file; return how many explanations were made."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, inputs = subject.build()
    numbers: dict[str, Tensor] = {}
    words: dict[str, Any] = {}
    for question in subject.questions(model, inputs):
        changed, given = question.change(model, inputs) if question.change else (model, inputs)
        for method in question.methods:
            with subject.around():
                found, said = explain(question, method, changed, given)
            key = f"{question.label}|{method}"
            words[key] = said
            numbers |= {f"{key}|{name}": x.clone() for name, x in found.items()}
    unfinished = path.with_suffix(f".{os.getpid()}")
    save_file(numbers, unfinished, {"words": json.dumps(words, sort_keys=True)})
    unfinished.replace(path)
    return len(words)


def store(folder: Path, only: str, part: tuple[int, int]) -> None:
    """Write the files of all models that have none yet."""
    folder.mkdir(parents=True, exist_ok=True)
    index, count = part
    chosen = [one for one in subjects() if fnmatch.fnmatch(one.name, only)]
    for subject in chosen[index - 1 :: count]:
        path = folder / f"{subject.name.replace('/', '~', 1).replace('/', '_')}.safetensors"
        if path.exists():
            continue
        began = time.process_time()
        made = store_subject(subject, path)
        print(f"{time.process_time() - began:6.1f} s {made:4} {subject.name}", flush=True)


# Reading


def read(path: Path) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
    """The numbers and words of each explanation in a file, by target and method."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        words = json.loads(file.metadata()["words"])
        found: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {key: ({}, said) for key, said in words.items()}
        for name in file.keys():  # noqa: SIM118  (no dict)
            key, _, tensor = name.rpartition("|")
            found[key][0][tensor] = file.get_tensor(name)
    return found


def files(folder: Path, only: str) -> dict[str, Path]:
    """The files of a folder by the names of their models."""
    found = {path.stem.replace("~", "/", 1): path for path in sorted(folder.glob("*.safetensors"))}
    return {name: path for name, path in found.items() if fnmatch.fnmatch(name, only)}


def short_hash(*content: bytes, digits: int = 7) -> str:
    """Return the first digits of a hash of several contents."""
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:digits]


def hash_of(numbers: dict[str, Tensor], said: dict[str, Any]) -> str:
    """A short hash of the bits of all numbers, then one of the words; of a refusal `!` and one of its words."""
    words = json.dumps(said, sort_keys=True).encode()
    if "refused" in said:
        return "!" + short_hash(words, digits=5)
    content = []
    for name, x in sorted(numbers.items()):
        content += [name.encode(), f"{x.dtype}{tuple(x.shape)}".encode(), x.view(torch.uint8).numpy().tobytes()]
    return short_hash(*content) + "." + short_hash(words, digits=3)


def lines_of(folder: Path, only: str = "*") -> list[str]:
    """One line for each model and target: `method=hash` of each method. Below, the words of each refusal."""
    lines, refusals = [], {}
    for name, path in files(folder, only).items():
        hashes: dict[str, list[str]] = {}
        for key, (numbers, said) in read(path).items():
            label, _, method = key.partition("|")
            found = hash_of(numbers, said)
            hashes.setdefault(label, []).append(f"{method}={found}")
            if "refused" in said:
                refusals[found] = f"{said['refused']}: {said['words']}".replace("\n", " ").replace("\t", " ")
        lines += [f"{name}\t{label}\t{' '.join(sorted(found))}" for label, found in hashes.items()]
    return sorted(lines) + [f"{found}\t{words}" for found, words in sorted(refusals.items())]


def write_hashes(folder: Path) -> None:
    """Write the committed hashes."""
    lines = lines_of(folder)
    import timm
    import transformers

    names = f"torch {torch.__version__}, transformers {transformers.__version__}, timm {timm.__version__}"
    processor = f"{torch.backends.cpu.get_cpu_capability()}, one thread"
    head = f"# written by benchmarks/stored_maps.py hashes: {names}; {processor}"
    HASHES.write_text("\n".join([head, *lines]) + "\n")
    print(f"{len(lines)} lines")


def check_hashes(folder: Path, only: str) -> int:
    """Print what is not as the committed hashes say; return how much that is."""
    stored = {}
    for line in HASHES.read_text().splitlines():
        if line.count("\t") == 2:
            name, label, found = line.split("\t")
            stored[name, label] = dict(one.split("=") for one in found.split())
    wrong = Counter()
    for line in lines_of(folder, only):
        if line.count("\t") != 2:
            continue
        name, label, found = line.split("\t")
        for method, now in (one.split("=") for one in found.split()):
            before = stored.get((name, label), {}).get(method)
            kind = changed_hash(before, now)
            wrong[kind] += 1
            if kind != "equal":
                print(f"{name}\t{label}\t{method}\t{kind}: {before} -> {now}")
    print(", ".join(f"{count} {kind}" for kind, count in wrong.most_common()))
    return wrong.total() - wrong["equal"]


def changed_hash(before: str | None, now: str) -> str:
    """What two hashes differ in."""
    if before is None:
        return "not stored"
    if before == now:
        return "equal"
    if "!" in before + now:
        return "refused otherwise" if before[0] == now[0] else "refused before" if before[0] == "!" else "refused now"
    return "other words" if before.split(".")[0] == now.split(".")[0] else "other numbers"


# Comparing


def distance(old: Tensor, new: Tensor, scale: float) -> float:
    """The largest difference relative to the largest number; infinite where shape, type or what is finite differs."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return float("inf")
    a, b = old.double(), new.double()
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    a, b = a[finite], b[finite]
    largest = float((a - b).abs().max()) if a.numel() else 0.0
    return largest / max(scale, float(a.abs().max()) if a.numel() else 0.0) if largest else 0.0


def compare_numbers(old: dict[str, Tensor], new: dict[str, Tensor]) -> tuple[str, str]:
    """A verdict on two sets of numbers, and the details where they are not equal."""
    if old.keys() != new.keys():
        return "differs", f"only in one: {', '.join(sorted(old.keys() ^ new.keys()))}"
    worst, exact, lines = "equal", True, []
    for name, x in old.items():
        scale = float(old["scores"].double().abs().nan_to_num().max()) if name.endswith("residual") else 0.0
        far = distance(x, new[name], scale)
        exact &= x.dtype == new[name].dtype and x.shape == new[name].shape and same_bits(x, new[name])
        bound = BOUNDS.get(x.dtype, 0.0)
        if far > bound:
            worst = "differs"
            shapes = "" if x.shape == new[name].shape else f" {tuple(x.shape)} -> {tuple(new[name].shape)}"
            types = "" if x.dtype == new[name].dtype else f" {x.dtype} -> {new[name].dtype}"
            lines.append(f"{name} by {far:.1e}{shapes}{types}")
    return ("equal bit for bit" if exact else "equal to rounding") if worst == "equal" else worst, "; ".join(lines)


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors have the same bits."""
    return torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two values of JSON differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{place}.{name}" if place else name)
    elif old != new:
        yield f"{place}: {old!s:.200} -> {new!s:.200}"


def compare_one(old: tuple[dict, dict], new: tuple[dict, dict]) -> tuple[str, str]:
    """A verdict on two explanations, and the details where they are not equal."""
    (numbers, said), (numbers_now, said_now) = old, new
    if "refused" in said or "refused" in said_now:
        if said == said_now:
            return "refused in the same words", ""
        words, words_now = (refusal(x) for x in (said, said_now))
        verdict = "refused before" if "refused" not in said_now else "refused now"
        both = "refused" in said and "refused" in said_now
        return "refused otherwise" if both else verdict, f"\n    {words}\n    {words_now}"
    verdict, details = compare_numbers(numbers, numbers_now)
    spoken = list(differences(said, said_now))
    if spoken and verdict != "differs":
        verdict += ", other words"
    return verdict, "; ".join([*([details] if details else []), *spoken])


def refusal(said: dict[str, Any]) -> str:
    """Return the class and words of a refusal, or that there is none."""
    return f"{said['refused']}: {said['words']}" if "refused" in said else "explained"


def compare(old_folder: Path, new_folder: Path, only: str, *, equal: bool) -> int:
    """Print how the explanations of two folders differ; return how many differ."""
    old, new = files(old_folder, only), files(new_folder, only)
    counts = Counter()
    for name in sorted(old.keys() & new.keys()):
        before, now = read(old[name]), read(new[name])
        for key in sorted(before.keys() | now.keys()):
            if key in before and key in now:
                verdict, details = compare_one(before[key], now[key])
            else:
                verdict, details = "in one folder only", ""
            counts[verdict] += 1
            if equal or verdict not in ("equal bit for bit", "refused in the same words"):
                label, _, method = key.partition("|")
                print(f"{name}\t{label}\t{method}\t{verdict}{': ' if details else ''}{details}")
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")
    missing = sorted(old.keys() ^ new.keys())
    print(f"{len(old.keys() & new.keys())} models in both folders, {len(missing)} in one only", *missing[:8])
    fine = ("equal", "refused in the same words")
    return sum(count for verdict, count in counts.items() if not verdict.startswith(fine))


def main() -> None:
    """Run one of the tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("store", "compare", "hashes", "check"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", default="*", help="names of models, such as 'tiny/*' or 'streams/t5'")
    parser.add_argument("--part", default="1/1", help="which part of how many, such as 1/2")
    parser.add_argument("--equal", action="store_true", help="also print what is equal")
    given = parser.parse_args()
    if given.task == "compare":
        sys.exit(compare(*given.folders, given.only, equal=given.equal) > 0)
    (folder,) = given.folders
    if given.task == "hashes":
        write_hashes(folder)
    elif given.task == "check":
        sys.exit(check_hashes(folder, given.only) > 0)
    else:
        index, count = map(int, given.part.split("/"))
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        store(folder, given.only, (index, count))


if __name__ == "__main__":
    main()
