"""One forward pass with the ears open, and the recording of all its layers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vitrail.anatomy import Anatomy, Body, anatomy, resolve
from vitrail.errors import OptionError
from vitrail.inputs import Inputs, check_length, read_inputs
from vitrail.listening import listening
from vitrail.outputs import read_output
from vitrail.passes import KEEPS, Pass, Settings, Wanted
from vitrail.recording import Layer, Recording
from vitrail.restore import prepared
from vitrail.targets import AnyTarget
from vitrail.trace import Trace


@contextmanager
def forward(model: nn.Module, inputs: Inputs, body: Body, wanted: Wanted, settings: Settings) -> Iterator[Pass]:
    """Run the model once with the ears open; the model is as it was when the block ends."""
    check_length(model, inputs)
    # A readout that may turn out to be another has to be measured, and that takes a gradient.
    cut = bool(wanted.gradients) or body.anatomy.readout == "auto" or body.head is not None
    with prepared(model, body.owner, gradients=cut):
        trace = Trace(body, keep=wanted.states, cut=cut)
        inputs = inputs.usable()
        args = inputs.args
        if cut and not body.blocks and args and args[0].is_floating_point():
            args = (args[0].detach().clone().requires_grad_(), *args[1:])
            trace.roots.append(args[0])
        with listening(model, trace):
            output = read_output(model(*args, **inputs.kwargs), span=body.anatomy.span)
        trace.check(model)
        yield Pass(inputs, trace, output, settings)


def record(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    target: AnyTarget = None,
    *,
    keep: frozenset[str] | set[str] = KEEPS,
    anatomy: Anatomy | None = None,
) -> Recording:
    """Every attention layer of one pass, with the gradients of one target.

    Args:
        keep: which states and gradients to keep beside queries, keys and values; all by default.
        anatomy: where the parts of the model are, if it is of no known family.
    """
    body = find_body(model, anatomy)
    wanted = Wanted.of(frozenset(keep))
    with forward(model, read_inputs(inputs), body, wanted, Settings()) as run:
        part, *more = run.parts(target)
        if more:
            raise OptionError(
                "an answer is two scalars, recorded one at a time: pass a function of the start and end logits "
                "[b, t, 2], such as lambda both: both[:, 5, 0]."
            )
        layers: list[Layer] = []
        run.visit(part, wanted, layers.append, again=True)
        return Recording(tuple(reversed(layers)), run.output.logits.detach(), part.scalar.detach())


def find_body(model: nn.Module, given: Anatomy | None) -> Body:
    """The model's parts, by the anatomy given or by the family's."""
    return resolve(given if given is not None else anatomy(model), model)
