"""The logits of one plain pass.

What a model says of an input, and how it divides a picture, from one plain pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.forward import find_body, forward
from vitrail.capture.pass_options import ComputeSettings, Wanted
from vitrail.capture.passes import Pass
from vitrail.capture.shadow import shadow
from vitrail.errors import TargetError
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.readouts import last_position
from vitrail.models.taking import prepared


@dataclass(frozen=True, eq=False)
class PredictedLogits:
    """The inputs in one form, the logits of each, and for pictures the rows and columns of patches."""

    inputs: Inputs
    logits: Float[Tensor, "b c"]
    grid: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        assert self.inputs.size is not None
        return self.inputs.size

    def showing(self, images: Tensor, **more: Any) -> Tensor | dict[str, Any]:  # noqa: ANN401
        """What the model is called with to look at other pictures, with further keywords."""
        main = self.inputs.main or ("pixel_values" if more else None)
        return images if main is None else {**self.inputs.kwargs, **more, main: images}

    @property
    def best(self) -> list[tuple[int, float]]:
        """The predicted class of each sample and its probability."""
        likely, classes = self.logits.softmax(dim=1).max(dim=1)
        return list(zip(classes.tolist(), likely.tolist(), strict=True))


def predict(model: object, inputs: Any, anatomy: Anatomy | None = None) -> PredictedLogits:  # noqa: ANN401
    """What the model says, for a language model of the token that follows."""
    read = read_inputs(prepared(model, inputs).inputs)
    with shadow(model) as own, forward(own, read, find_body(own, anatomy, read), Wanted(), ComputeSettings()) as run:
        return PredictedLogits(read, _class_logits(run), run.origin.grid)


def _class_logits(run: Pass) -> Float[Tensor, "b c"]:
    logits = run.output.wide.detach()
    if run.output.span:
        raise TargetError("a model that answers questions has no classes to contrast: use vitrail.explain.")
    if logits.ndim == 2:
        return logits
    if not run.causal:
        raise TargetError("this model answers at every token: use vitrail.explain with targets.logit(c, position=p).")
    return logits[torch.arange(len(logits), device=logits.device), last_position(run.valid)]
