"""From a method's result to an attribution: cut to the content, laid out on the grid, labelled."""

from typing import Any

import torch
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError
from vitrail.outputs import Part
from vitrail.passes import Pass
from vitrail.relevance import Result
from vitrail.requests import Request


def attribution_of(request: Request, results: list[tuple[Part, Result]], run: Pass) -> Attribution:
    """The results of all parts of the target, added, cut to the content and labelled."""
    inputs, target = run.inputs, results[0][0].target

    def joined(name: str) -> Tensor | None:
        found = [getattr(result, name) for _, result in results]
        if found[0] is None:
            return None
        total = sum((x.abs() if target.absolute else x) for x in found)
        return _content(total, run)

    scores = joined("scores")
    assert scores is not None
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"{request.entry.name} gave scores that are not finite for the target {target}. Ratios and relative "
            "differences break down where a logit is near zero: use targets.difference."
        )
    patches = scores.shape[1]
    return Attribution(
        scores=scores,
        method=request.entry.name,
        target=target,
        kind=inputs.kind,
        signed=request.entry.is_signed(request.options),
        preset=request.preset,
        options=dict(request.options),
        grid=grid_of(patches, inputs.size) if inputs.size else None,
        size=inputs.size,
        tokens=inputs.tokens if inputs.kind == "text" else None,
        valid=run.valid if inputs.kind == "text" and not bool(run.valid.all()) else None,
        own=joined("own"),
        readout=run.readout_position() if inputs.kind == "text" and len(results) == 1 else None,
        layers=joined("layers"),
        heads=joined("heads"),
        provenance={"backend": run.backend},
    )


def _content(x: Any, run: Pass) -> Tensor:  # noqa: ANN401
    """Scores of real tokens only: padding zero, and for images without the prefix."""
    x = x * run.valid.view(x.shape[0], *[1] * (x.ndim - 2), -1)
    return x[..., run.prefix :].clone() if run.inputs.kind == "image" else x


def grid_of(patches: int, size: tuple[int, int]) -> tuple[int, int]:
    """How square patches lie in an image of this size; what is left over at its edges is not seen by the model."""
    height, width = size
    likely = (height * width / max(patches, 1)) ** 0.5
    for side in sorted(range(1, min(size) + 1), key=lambda side: abs(side - likely)):
        if (height // side) * (width // side) == patches:
            return height // side, width // side
    raise OptionError(
        f"{patches} patches do not tile an image of {height} x {width} with square patches. If tokens stand before "
        "the patches, name their number: vitrail.Anatomy(prefix=...)."
    )
