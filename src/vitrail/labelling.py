"""From a method's result to an attribution: cut to the content, laid out on the grid, labelled."""

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.capture.outputs import Scalar
from vitrail.capture.passes import Pass
from vitrail.errors import InputError
from vitrail.models.grids import patch_sums
from vitrail.relevance import Result
from vitrail.requests import Request


def attribution_of(
    request: Request, results: list[tuple[Scalar, Result]], run: Pass, dtype: torch.dtype | None = None
) -> Attribution:
    """The results of all parts of the target, added, cut to the content and labelled.

    Args:
        dtype: what the numbers are given in, if not in that of the pass.
    """
    inputs, target = run.inputs, results[0][0].target

    def joined(name: str) -> Tensor | None:
        found = [getattr(result, name) for _, result in results]
        if found[0] is None:
            return None
        total = reduce(torch.add, [x.abs() if target.absolute else x for x in found])
        return total if dtype is None else total.to(dtype)

    def content(name: str) -> Tensor | None:
        total = joined(name)
        return None if total is None else _content(total, run)

    pixels, residual = joined("pixels"), joined("residual")
    grid = run.origin.grid
    scores = content("scores") if pixels is None or grid is None else patch_sums(pixels, grid, run.origin.patch)
    assert scores is not None
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"{request.entry.name} gave scores that are not finite for the target {target}. Ratios and relative "
            "differences break down where a logit is near zero: use targets.difference."
        )
    return Attribution(
        scores=scores,
        method=request.entry.name,
        target=target,
        kind=inputs.kind,
        signed=request.entry.is_signed(request.options),
        preset=request.preset,
        options={name: _said(value) for name, value in request.options.items()},
        grid=grid,
        size=inputs.size,
        tokens=inputs.tokens if inputs.kind == "text" else None,
        valid=run.patches(run.valid) if inputs.kind == "text" and not bool(run.valid.all()) else None,
        own=content("own"),
        readout=run.readout_position() if inputs.kind == "text" and len(results) == 1 else None,
        pixels=pixels,
        layers=content("layers"),
        heads=content("heads"),
        provenance={
            "backend": run.worked,
            **({} if residual is None else {"residual": residual.tolist()}),
            **({} if request.reason is None else {"default": request.reason}),
            **({} if not (assumed := run.assumed) else {"assumed": list(assumed)}),
            **({"virtual_tokens": run.virtual} if run.virtual else {}),  # what they got is not among the scores
            **_parts_of([result for _, result in results]),
        },
    )


def _parts_of(results: list[Result]) -> dict[str, Any]:
    """Which parts a method added up, and how little they agree in each sample; nothing where it has none."""
    apart = [result.disagreement for result in results if result.disagreement is not None]
    return {
        **({"parts": list(results[0].parts)} if results[0].parts else {}),
        **({"disagreement": torch.stack(apart).mean(dim=0).tolist()} if apart else {}),
    }


def _said(value: object) -> object:
    """An option's value as a result keeps it: arrays by their shape."""
    shape = getattr(value, "shape", None)
    return value if shape is None else f"array of {' x '.join(map(str, shape))}"


def _content(x: Any, run: Pass) -> Tensor:  # noqa: ANN401
    """Scores of the patches or words of the input in their order, padding zero."""
    return run.patches(x * run.valid.view(x.shape[0], *[1] * (x.ndim - 2), -1))
