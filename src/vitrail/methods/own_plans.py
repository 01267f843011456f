"""The plan of a user's method: a walk, a reader of layers, a procedure, or a function of a recording made into one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vitrail.capture.recording.layer import Recording
from vitrail.capture.recording.pass_options import KEEPS
from vitrail.errors import MethodError
from vitrail.methods.table import reads_recording
from vitrail.relevance import LayerReader, Result, Walk
from vitrail.relevance.runner import RerunMethod, Runner

Plan = Walk | LayerReader | RerunMethod


def build_own(name: str, function: Callable[..., Any], /, **options: Any) -> Plan:  # noqa: ANN401
    """Return the method that a user's function makes, or is."""
    if reads_recording(function):
        return make_plan(partial(function, **options), name)
    return make_plan(function(**options), name)


def make_plan(made: object, name: str) -> Plan:
    """Return the walk, the layer reader or the procedure that a method is; a function of a recording becomes one."""
    if isinstance(made, (Walk, LayerReader, RerunMethod)):
        return made
    if callable(made) and not isinstance(made, type) and reads_recording(made):
        return _follow_recording(made, name)
    raise MethodError(
        f"{name} made {type(made).__name__}, which is no method: a method is a vitrail Walk, LayerReader or "
        "RerunMethod, or a function of a recording that returns scores [b, tokens]."
    )


def _follow_recording(function: Callable[..., Any], name: str) -> RerunMethod:
    """Return the procedure that hands one recording to a function and takes what it returns for scores."""

    def explain(runner: Runner) -> Result:
        layers = tuple(runner.layers(KEEPS))
        recording = Recording(layers, runner.run.output.logits.detach(), runner.part.scalar.detach())
        found = function(recording)
        try:
            scores = torch.as_tensor(found)
        except (TypeError, RuntimeError, ValueError) as error:
            raise MethodError(f"{name} returned {type(found).__name__}, which is no tensor of scores.") from error
        wanted = tuple(runner.run.valid.shape)
        if tuple(scores.shape) != wanted:
            raise MethodError(
                f"{name} returned scores of shape {list(scores.shape)}, but there are {wanted[0]} samples of "
                f"{wanted[1]} tokens: return one score per token, {list(wanted)}, class and padding tokens included."
            )
        scores = scores.detach().to(runner.run.valid.device)
        if not scores.is_floating_point():
            scores = scores.float()
        return Result(scores.masked_fill(~runner.run.valid, 0.0))

    return RerunMethod(explain, needs=KEEPS)
