"""Shared parts of methods: checks of options, models and inputs, min-max, the level where a gradient ends, bars."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from tqdm import tqdm

from vitrail.capture.recording.layer import Layer
from vitrail.capture.recording.pass_options import LEVELS, PassOptions
from vitrail.errors import AnatomyError, InputError, MethodError, OptionError, suggest
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import last_position
from vitrail.relevance import LayerReader, Result
from vitrail.relevance.lrp import RuleSet, propagating
from vitrail.relevance.runner import Runner

T = TypeVar("T")
Check = Callable[[nn.Module, Body, Inputs], None]

ROWS: dict[str, Callable[[Layer], Float[Tensor, "b q"]]] = {
    "readout": lambda layer: layer.readout,
    "mean": lambda layer: layer.every_query,
}
"""Which rows of a map are read: the readout's, or the mean over all real queries."""

PRECISIONS: dict[str, torch.dtype | None] = {"model": None, "float64": torch.float64, "float32": torch.float32}
"""In which precision relevance is propagated; None is the model's own."""


def check_choice(option: str, value: object, table: Mapping[str, T]) -> T:
    """The table's entry for an option's value, or an error that names the choices."""
    if not isinstance(value, str) or value not in table:
        raise OptionError(f"{option}={value!r} is not a choice. {suggest(value, table)}")
    return table[value]


MOST = 10_000
"""The largest count: more steps, ablations or samples at once than any result has a use for."""
SEEDS = (-(2**63), 2**64 - 1)
"""What a random generator takes."""


def check_count(option: str, value: object, *, least: int = 1, most: int = MOST) -> None:
    """Raise unless an option that counts something is a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{option}={value!r:.200}, but it is a whole number from {least} to {most}.")
    number = int(value)
    if not least <= number <= most:
        shown = str(number) if abs(number) < 10**20 else f"{'-' if number < 0 else ''}a number of many digits"
        raise OptionError(f"{option}={shown}, but it must be at least {least} and at most {most}.")


def check_seed(seed: int) -> None:
    """Raise unless a random generator takes the seed."""
    check_count("seed", seed, least=SEEDS[0], most=SEEDS[1])


def check_start_layer(start_layer: int, layer: Layer) -> None:
    """Raise if the model has no such layer."""
    if not 0 <= start_layer < layer.depth:
        raise OptionError(f"start_layer={start_layer}, but the model's layers are 0 to {layer.depth - 1}.")


def min_max(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From 0 at the lowest to 1 at the highest; zeros where both are the same."""
    flat = high == low
    return torch.where(flat, torch.zeros_like(x), (x - low) / torch.where(flat, torch.ones_like(high), high - low))


def min_max_over(x: Float[Tensor, "b ... t"], chosen: Bool[Tensor, "b ... t"]) -> Float[Tensor, "b ... t"]:
    """Each row from 0 to 1 over the chosen tokens; zero elsewhere, and where all are the same."""
    low = x.masked_fill(~chosen, torch.inf).amin(dim=-1, keepdim=True)
    high = x.masked_fill(~chosen, -torch.inf).amax(dim=-1, keepdim=True)
    return ((x - low) / torch.where(high == low, torch.ones_like(high), high - low)).masked_fill(~chosen, 0)


def to_unit(maps: Float[Tensor, "b y x"]) -> Float[Tensor, "b y x"]:
    """Each map from 0 to 1; a constant one is zero."""
    return min_max(maps, maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True))


def without_readout(zero: bool) -> Callable[[Tensor, Layer], Result]:  # noqa: FBT001
    """A `finish` that gives the scores as they are, or with the readout's own entry set to zero."""

    def finish(scores: Float[Tensor, "b t"], first: Layer) -> Result:
        own = first.readout == 1  # a mean over tokens has no entry of its own
        return Result(torch.where(own, torch.zeros_like(scores), scores) if zero else scores)

    return finish


def without_own(result: Result) -> Float[Tensor, "b t"]:
    """Scores without the own part of the tokens that the prediction reads."""
    assert result.scores is not None
    return result.scores if result.own is None else result.scores - result.own


def last_layer(
    read: Callable[[Layer], Any],
    finish: Callable[[Any, Layer], Result] = lambda scores, first: Result(scores),
    *,
    gradients: bool = True,
) -> LayerReader:
    """Make a method that reads the last layer alone."""
    needs = frozenset({"output_grad"} if gradients else ())
    step = lambda found, layer: read(layer) if layer.is_last else found  # noqa: E731
    return LayerReader(step, finish=finish, needs=needs, last_only=gradients)


def check_blocks(what: str, *, least: int = 1) -> Check:
    """A check that the model's blocks are known, and at least so many."""

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if len(body.blocks) < least:
            found = f"only {len(body.blocks)} known" if body.blocks else "none known"
            raise AnatomyError(
                f"{what} needs {'the blocks' if least == 1 else f'at least {least} blocks'} of the model, but there is "
                f"{found} in {type(model).__name__}. Name them: vitrail.Anatomy(blocks=...)."
            )

    return check


ONLY = {"pixels": "image", "inputs_embeds": "text"}
"""Levels that only one kind of input has."""


def check_level(level: str) -> Check:
    """A check that inputs have the level; a level that does not exist is refused at once."""
    if level not in LEVELS:
        raise OptionError(f"level={level!r} is not a choice. {suggest(level, LEVELS)}")

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if ONLY.get(level, inputs.kind) != inputs.kind:
            raise OptionError(f"level={level!r} is for {ONLY[level]} inputs, but these are {inputs.kind}.")
        if level == "inputs_embeds" and inputs.signal:
            raise OptionError("level='inputs_embeds' is for texts, but these inputs are a signal. Leave level out.")
        if level == "embedding_output" and not body.blocks:
            why = body.loose or "name them in vitrail.Anatomy(blocks=...)"
            lower = [name for name, kind in ONLY.items() if kind == inputs.kind and not inputs.signal]
            instead = f" level={lower[0]!r} needs none." if lower else ""
            raise OptionError(f"level='embedding_output' needs the model's blocks: {why}.{instead}")

    return check


def check_rules(name: str, level: str, *, refused: Mapping[str, str] | None = None) -> Check:
    """A check that rules can be followed through a model, down to a level.

    Args:
        refused: by the name of a class, why its modules cannot be followed.
    """
    has_level = check_level(level)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        has_level(model, body, inputs)
        if body.temperature is not None:
            raise MethodError(f"{name} has no rule for the cosine by which {type(model).__name__} compares embeddings.")
        for path, module in model.named_modules():
            for ending, reason in (refused or {}).items():
                if type(module).__name__.endswith(ending):
                    raise MethodError(f"{name} cannot follow {path!r}, {type(module).__name__}: {reason}.")

    return check


def under_rules(
    table: RuleSet, level: str, precision: str, *, wide_range: bool = False, last_block: bool = False
) -> PassOptions:
    """A pass whose gradient is overridden by rules, down to a level."""
    dtype, rules = check_choice("precision", precision, PRECISIONS), partial(propagating, table)
    return PassOptions(level=level, dtype=dtype, wide_range=wide_range, last_block=last_block, within=rules)


def at_level(level: str, runner: Runner, found: Tensor) -> Result:
    """Return the result at the place where the gradient ends, summed over channels, as scores of pixels or tokens."""
    if level == "pixels":
        return Result(pixels=found.sum(dim=1))
    scores = tokens_first(runner, level, found).sum(dim=2)
    # Words may stand behind memory tokens, or in another order than the blocks have them.
    return Result(runner.run.among_tokens(scores) if level == "inputs_embeds" else scores)


def tokens_first(runner: Runner, level: str, x: Tensor) -> Tensor:
    """A tensor of the residual stream as `[b, t, d]`, whatever order the model keeps its axes in."""
    batch_first = level != "embedding_output" or runner.body.blocks[0].batch_first
    return x if batch_first else x.transpose(0, 1)


def special_tokens(inputs: Inputs) -> Bool[Tensor, "b t"]:
    """Return a mask of the special tokens: as the tokenizer says, else all equal to the first or last real token."""
    if inputs.special is not None:
        return inputs.special.bool()
    if inputs.ids is None:
        raise InputError("which tokens are special is unknown: pass special_tokens_mask with the inputs.")
    valid = torch.ones_like(inputs.ids) if inputs.attention_mask is None else inputs.attention_mask
    rows = torch.arange(inputs.ids.shape[0], device=inputs.ids.device)
    first = inputs.ids[rows, valid.bool().to(torch.int64).argmax(dim=1)]
    last = inputs.ids[rows, last_position(valid.bool())]
    return (inputs.ids == first[:, None]) | (inputs.ids == last[:, None])


def mask_special_tokens(inputs: Inputs, options: Mapping[str, Any]) -> Inputs:
    """The inputs with special tokens masked out of the attention, if the option asks for it.

    AttCAT's released notebooks do so with [CLS] and [SEP].
    """
    if not options["mask_special_tokens"]:
        return inputs
    if inputs.kind != "text":
        raise InputError("mask_special_tokens applies to text only; an image has no special tokens to mask.")
    special = special_tokens(inputs)
    base = torch.ones_like(special, dtype=torch.int64) if inputs.attention_mask is None else inputs.attention_mask
    if not bool((base.bool() & ~special).any(dim=1).all()):
        raise InputError("one of the texts has no token but special ones, so masking them leaves nothing to attend to.")
    masked = base * (~special).to(base.dtype)
    return replace(inputs, attention_mask=base, kwargs={**inputs.kwargs, "attention_mask": masked})


DELAY = 2.0
"""Seconds before the progress bar appears."""


def progress_bar(words: str, *, total: int | None = None, steps: Iterable[T] | None = None, show: bool = True) -> Any:  # noqa: ANN401
    """Return a bar of tqdm that appears if the work takes long, on a terminal or below the cell of a notebook."""
    hidden = not show or not (sys.stderr.isatty() or in_notebook())
    return tqdm(steps, desc=words, total=total, delay=DELAY, leave=False, disable=hidden, file=sys.stderr)


def show_progress(steps: Sequence[T], words: str, *, show: bool = True) -> Iterator[T]:
    """Yield the steps, with a progress bar if they take long: on a terminal, or below the cell of a notebook.

    Args:
        steps: what is worked through.
        words: the text before the bar: what is being done.
        show: whether there may be a bar at all.
    """
    yield from progress_bar(words, steps=steps, show=show)


def in_notebook() -> bool:
    """Return True where results are shown below the cells of a notebook."""
    shell = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return hasattr(found, "kernel")
