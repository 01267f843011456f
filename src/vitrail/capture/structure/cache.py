"""The memory for inputs of one form: the key of a form, and what passes over such inputs were seen to do.

Inputs of one form may be treated in different ways: tokens that are turned round where the first id says so, early
exits. The signature of a pass tells them apart (`Route`); of a pass whose graph does not show it, its `Journal`.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from vitrail.capture.structure.signature import GraphEnds, Node, Route
from vitrail.models.inputs import Inputs

T = TypeVar("T")
SAMPLES = 2
"""How many samples are looked at: enough to see that samples are kept separate."""
SHORTEST, LONGEST = 8, 512
"""Tokens from which on texts of different lengths are taken to run the same modules, and up to which a causal text is
measured whole."""
MOST_ROUTES = 16
"""How many passes that treat tokens in different ways are remembered for one form of input."""


class InputForm(NamedTuple):
    """All of some inputs that a measurement may depend on: names, shapes and settings.

    Args:
        keys: of texts that of any length, then that of this length; else one alone.
        length: of the text; None where the inputs are no such text.
    """

    keys: tuple[Hashable, ...]
    length: int | None = None


NO_FORM = InputForm(())


def form_of(
    inputs: Inputs,
    *context: Hashable,
    samples: int | None = SAMPLES,
    longest: float = LONGEST,
    deciding: Collection[int | str] = (),
) -> InputForm:
    """Return the form of some inputs: two of the same form are measured once.

    Args:
        context: what else the measurement depends on.
        samples: how many samples are looked at; None for all.
        longest: up to which length texts have a form whatever their length.
        deciding: arguments, by name or place, whose numbers belong to the form, such as positions of tokens.
    """
    ids, exact, short = inputs.ids, list[Hashable](), list[Hashable]()
    for name, x in (*enumerate(inputs.args), *inputs.kwargs.items()):
        if not isinstance(x, Tensor):
            one = (name, repr(x))
        else:
            shape = x.shape[1:] if x.shape[:1] == (inputs.batch,) else x.shape
            one = (name, shape, x.dtype, hash_numbers(x) if name in deciding else None)
        exact.append(one)
        resized = isinstance(x, Tensor) and ids is not None and x.shape == ids.shape and name not in deciding
        short.append((name, x.dtype) if resized else one)
    rest = inputs.kind, inputs.batch if samples is None else min(inputs.batch, samples), context
    whole = tuple(exact), rest
    if ids is None or ids.ndim != 2 or not SHORTEST <= ids.shape[1] <= longest:
        return InputForm((whole,))
    return InputForm(((tuple(short), rest), whole), ids.shape[1])


def named_arguments(inputs: Inputs) -> list[tuple[int | str, Any]]:
    """Return the arguments of a call with their places or names."""
    return [*enumerate(inputs.args), *inputs.kwargs.items()]


def content_of(inputs: Inputs) -> Hashable:
    """Return a key that stands for all numbers of some inputs."""
    return form_of(inputs, samples=None, deciding=[name for name, _ in named_arguments(inputs)]).keys[-1]


def hash_numbers(x: Tensor) -> int:
    """Return a hash of the numbers of a tensor."""
    return hash(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


@dataclass(eq=False)
class Variants(Generic[T]):
    """Facts about passes over inputs of one form, by what they did to tokens; the last used comes first."""

    routes: list[tuple[Route, T]] = field(default_factory=list)
    journals: dict[Hashable, T] = field(default_factory=dict)

    def find(self, ends: GraphEnds, fit: Callable[[T], T | None]) -> tuple[T, list[Node]] | None:
        """Return what is known of passes like one that ran, and the nodes of this one in the order of its route.

        None if there was no such pass.

        Args:
            ends: where the graph of the pass is read.
            fit: turns what is known into what holds for these inputs, or gives None where it cannot.
        """
        for place, (route, known) in enumerate(self.routes):
            found = fit(known)
            nodes = None if found is None else route.nodes_in(ends)
            if found is None or nodes is None:
                continue
            if place:
                self.routes.insert(0, self.routes.pop(place))
            return found, nodes
        return None

    def keep(self, route: Route, found: T, *, most: int = MOST_ROUTES) -> None:
        """Remember what was measured of a pass whose graph shows all that it did to tokens."""
        if not route.hidden:
            self.routes.insert(0, (route, found))
            del self.routes[most:]

    def keep_journal(self, key: Hashable, found: T) -> None:
        """Remember what was measured of a pass by what its journal holds."""
        if len(self.journals) >= MOST_ROUTES:
            self.journals.clear()
        self.journals[key] = found
