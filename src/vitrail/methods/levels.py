"""What methods share that end at a chosen level: the picture, the word embeddings, the first block's input."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from vitrail.capture.pass_options import LEVELS
from vitrail.errors import MethodError, OptionError, suggest
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.runner import Runner

ONLY = {"pixels": "image", "inputs_embeds": "text"}
"""Levels that only one kind of input has."""


def check_level(level: str) -> Callable[[nn.Module, Body, Inputs], None]:
    """A check that inputs have the level; a level that does not exist is refused at once."""
    if level not in LEVELS:
        raise OptionError(f"level={level!r} is not a choice. {suggest(level, LEVELS)}")

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if ONLY.get(level, inputs.kind) != inputs.kind:
            raise OptionError(f"level={level!r} is for {ONLY[level]} inputs, but these are {inputs.kind}.")
        if level == "embedding_output" and not body.blocks:
            raise OptionError("level='embedding_output' needs the model's blocks: vitrail.Anatomy(blocks=...).")

    return check


def check_rules(
    name: str, level: str, *, refused: Mapping[str, str] | None = None
) -> Callable[[nn.Module, Body, Inputs], None]:
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


def at_level(level: str, runner: Runner, found: Tensor) -> Result:
    """What was found where the gradient ends, summed over channels, as scores of pixels or of tokens."""
    if level == "pixels":
        return Result(pixels=found.sum(dim=1))
    return Result(tokens_first(runner, level, found).sum(dim=2))


def tokens_first(runner: Runner, level: str, x: Tensor) -> Tensor:
    """A tensor of the residual stream as `[b, t, d]`, whatever order the model keeps its axes in."""
    batch_first = level != "embedding_output" or runner.body.blocks[0].batch_first
    return x if batch_first else x.transpose(0, 1)
