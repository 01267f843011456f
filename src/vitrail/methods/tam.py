"""Transition attention maps: attention as a Markov chain, times the integrated gradient of the last map.

Yuan et al., "Explaining Information Flow Inside Vision Transformers Using Markov Chain", NeurIPS XAI4Debugging 2021.
Paper -> code: pi -> `states`, one for each row that is read; P -> head mean of A; W -> `feedback`.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.methods.paths import (
    LAST,
    carried,
    check_counts,
    check_path,
    feedback,
    first_layer,
    mean_gradient,
    pull_rows,
    rows_read,
)
from vitrail.relevance import Result, attention
from vitrail.relevance.runner import RerunMethod, Runner

START = {"image": 4, "text": 4}
"""The first layer of the released code, counted from zero."""


def first_states(last: Layer, rows: Float[Tensor, "b r q"]) -> Float[Tensor, "b r t"]:
    """`pi = E_h A^L`, the rows that are read."""
    return pull_rows(last, rows, attention).mean(dim=1)


def transition(states: Float[Tensor, "b r q"], layer: Layer) -> Float[Tensor, "b r t"]:
    """`pi <- pi (E_h A^l) + pi`."""
    return carried(states, layer) + pull_rows(layer, states, attention).mean(dim=1)


def chain(layers: list[Layer], rows: Float[Tensor, "b r q"], *, start: int) -> Float[Tensor, "b r t"]:
    """The states after all transitions from the last layer down to the first that takes part."""
    states = first_states(layers[-1], rows)
    for layer in reversed(layers[start:-1]):
        states = transition(states, layer)
    return states


def build(*, start_layer: int | None = None, steps: int = 20, batch: int = 1) -> RerunMethod:
    """The end of a Markov chain along attention, times the integrated gradient of the last map.

    Args:
        start_layer: the lowest layer of the chain, counted from zero, or from the end if negative; by default 4, or 0
            in models with fewer blocks.
        steps: points of the path from zero to the input, both ends included.
        batch: how many points run at once.
    """
    check_counts(steps=steps, batch=batch)

    def explain(runner: Runner) -> Result:
        start = first_layer(start_layer, START, kind=runner.inputs.kind, depth=runner.run.depth)
        layers = runner.layers(LAST, last_only=True)
        rows = rows_read(layers[-1])
        weights = feedback(mean_gradient(runner, layers[-1], rows, steps=steps, batch=batch))
        return Result(rows.joined(weights * chain(layers, rows.chosen, start=start)))

    return RerunMethod(explain, needs=LAST, check=check_path(start_layer))
