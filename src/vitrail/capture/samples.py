"""Checks that the answer to one sample is made of that sample alone, and is the same whenever the model runs on it.

A model that compares the samples of a batch, or normalises over them, gives each an answer that hangs on the others. A
map of one sample would then leave out, or hold, parts of others. This is measured at the inputs, whatever is inside the
model, so every method asks it here. Methods that run the model again also ask whether it gives the same answer again.
"""

import math
from contextlib import suppress

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from vitrail.capture.outputs import read_output, run_model
from vitrail.capture.recording.input_gradients import at_inputs
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.capture.refusals import COUPLED
from vitrail.capture.residuals import close
from vitrail.capture.shadow import autograd, dtypes_of, remembered
from vitrail.capture.structure.cache import form_of
from vitrail.errors import MethodError, SeamError
from vitrail.models.inputs import Inputs

MOST = 3
"""How many samples are looked at."""


def check_apart(model: nn.Module, inputs: Inputs) -> None:
    """Raise if the answers to these samples depend on each other."""
    if inputs.batch > 1 and _coupled(model, inputs):
        raise SeamError(COUPLED)


def check_all_apart(model: nn.Module, inputs: Inputs) -> None:
    """Raise if the answers to these very samples depend on each other; all of them are looked at, in every call."""
    if inputs.batch < 2:
        return
    coupled = False
    with suppress(Exception):  # of the model's own code: why it does not run is said where it is explained
        coupled = _depend_on_each_other(model, inputs)
    if coupled:
        raise SeamError(COUPLED)


def check_copies(model: nn.Module, inputs: Inputs) -> None:
    """Raise if the answer to a sample changes when copies of it stand in the batch."""
    if inputs.batch == 1 and _coupled(model, inputs.take(torch.zeros(2, dtype=torch.long))):
        raise MethodError(f"{COUPLED} This method runs several copies of a sample at once: take one that does not.")


def _few(inputs: Inputs) -> Inputs:
    return inputs if inputs.batch <= MOST else inputs.take(torch.tensor([0, 1, inputs.batch - 1]))


def measure_repeats(model: nn.Module, inputs: Inputs) -> tuple[bool, bool]:
    """Return whether two passes over a few samples answer alike, and whether they draw random numbers."""
    some, before, draws = _few(inputs), torch.get_rng_state(), False

    def answer() -> Tensor:
        own = some.take(torch.arange(some.batch))  # a copy, because models may write into what they are given
        return read_output(run_model(model, own), broken=True).wide.nan_to_num()

    with suppress(Exception), autograd(gradients=False):  # of the model's own code: why it fails is said elsewhere
        first = answer()
        draws = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        second = answer()
        return first.shape == second.shape and close(first, second, dtypes_of(model)), draws
    return True, draws


def _coupled(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if the answers to these samples depend on each other; measured once for each form of input."""
    form = form_of(inputs, samples=MOST, longest=math.inf)
    return remembered.get(model, "coupled samples", form.keys[0], lambda: _measured(model, inputs))


def _measured(model: nn.Module, inputs: Inputs) -> bool:
    """Measure a few samples, or all where the model takes no fewer."""
    for some in (_few(inputs), inputs):
        with suppress(Exception):  # of the model's own code, which may raise anything
            return _depend_on_each_other(model, some)
    return False  # why it does not run is said where it is explained


def _depend_on_each_other(model: nn.Module, some: Inputs) -> bool:
    """Return True if the gradient of the answer to one sample arrives at another one."""
    options = PassOptions(dtype=torch.float32) if torch.float16 in dtypes_of(model) else PassOptions()
    with torch.random.fork_rng(devices=[]):
        run = at_inputs(model, some, pass_options=options)
    places = [x for name, x in run.roots.items() if name not in some.shared and x.shape[0] == some.batch]
    answer = run.answer.output.wide
    if not places or answer.shape[0] != some.batch or not answer.requires_grad:
        return False
    # Any two samples differ in a digit of their numbers: halves of the batch tell them all apart.
    numbers = torch.arange(some.batch)
    digits = [numbers >> place & 1 == 1 for place in range((some.batch - 1).bit_length())]
    halves = [half for digit in digits for half in (digit, ~digit)]
    return any(_reaches_others(answer, places, half) for half in halves)


def _reaches_others(answer: Tensor, places: list[Tensor], rows: Bool[Tensor, " b"]) -> bool:
    """Return True if the gradient of the answers to some samples arrives at another sample."""
    seed = torch.randn(answer.shape, generator=torch.Generator().manual_seed(0)).to(answer)
    seed[~rows.to(answer.device)] = 0
    found = torch.autograd.grad(answer, places, seed, retain_graph=True, allow_unused=True)
    others = [x[~rows.to(x.device)] for x in found if x is not None]
    return any(bool((x.isfinite() & (x != 0)).any()) for x in others)
