"""A method as a walk over layers, last to first."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Early, Layer, Recording


@dataclass(frozen=True)
class Result:
    """Scores of all tokens, prefix included, and the parts a method can show beside them.

    `own` is what each token's score holds for being read itself, carried down by the skip connections. A method that
    works on pixels gives `pixels` alone; its scores are the sums over patches. `residual` is what the sum of all scores
    lacks of what it should be, for methods whose scores should add up. `parts` names what `layers` holds where that is
    not one map per layer, and `disagreement` says how little those parts agree.
    """

    scores: Float[Tensor, "b t"] | None = None
    own: Float[Tensor, "b t"] | None = None
    layers: Float[Tensor, "b l t"] | None = None
    heads: Float[Tensor, "b h t"] | None = None
    pixels: Float[Tensor, "b y x"] | None = None
    residual: Float[Tensor, " b"] | None = None
    parts: tuple[str, ...] = ()
    disagreement: Float[Tensor, " b"] | None = None


@dataclass(frozen=True)
class Walk:
    """Three small functions: a state made at the last layer, changed at each, and read at the first.

    Args:
        needs: states and gradients the step reads beside queries, keys and values (`record.KEEPS`).
        last_only: whether gradients are read at the last layer (and at the last block, where a query pools what it
            gives) only, so the backward pass may stop there.
        scalar: `"logit"` or `"probability"`: what of a plain class target is differentiated.
        early: what is read with `layer.taken` and takes some of the states in `needs`.
        across: for models with several streams, what an attention call leaves with its query rows and what it gives to
            its key rows; None where the method is defined on one stream only.
        whole: for models with several streams, the scores of all tokens from all events at once, in place of a walk.
    """

    start: Callable[[Layer], Any]
    step: Callable[[Any, Layer], Any]
    finish: Callable[[Any, Layer], Result]
    needs: frozenset[str] = frozenset({"output_grad"})
    last_only: bool = False
    scalar: str = "logit"
    early: Early | None = None
    across: Callable[[Any, Layer], tuple[Any, Any]] | None = None
    whole: Callable[..., Any] | None = None


class Walker:
    """A walk under way, wherever its layers come from."""

    def __init__(self, method: Walk) -> None:
        self.method = method
        self.state: Any = None
        self.result: Result | None = None
        self.ran: set[str] = set()  # the backends that worked for it
        self.seconds = 0.0

    def see(self, layer: Layer) -> None:
        """Take one layer; they come last to first."""
        begun = time.perf_counter()
        layer.ran.clear()
        if layer.is_last:
            self.state = self.method.start(layer)
        self.state = self.method.step(self.state, layer)
        if layer.index == 0:
            self.result = self.method.finish(self.state, layer)
        self.ran |= layer.ran
        self.seconds += time.perf_counter() - begun


def walk(method: Walk, recording: Recording) -> Result:
    """The result of a walk over a finished recording."""
    walker = Walker(method)
    for layer in reversed(recording.layers):
        walker.see(layer)
    assert walker.result is not None
    return walker.result


def plain(relevance: Float[Tensor, "b t"], first: Layer) -> Result:
    """The relevance as it is, for walks whose state is the answer."""
    return Result(relevance)


def readout_row(last: Layer) -> Float[Tensor, "b q"]:
    """The rows the prediction reads, alike: where most walks start."""
    return last.readout


def readout_norms(last: Layer) -> Float[Tensor, "b q"]:
    """The rows the prediction reads, each weighed by the norm of its gradient; a pooling query is one row."""
    return last.readout if last.readout_norms is None else last.readout_norms


STARTS: dict[str, Callable[[Layer], Float[Tensor, "b q"]]] = {"equal": readout_row, "gradient": readout_norms}
"""How the rows that a prediction reads share the start of a walk, by the name of the option `readout`."""
