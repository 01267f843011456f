"""Measurements of a model, for each form of its inputs and for each thing that it was seen to do with its tokens.

A pass whose signature is not known has its structure measured on the inputs of that very pass, on all samples unless
the first ones are treated as all of them are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from vitrail.capture.references import settings_of
from vitrail.capture.shadow import autograd, memory_of, once, remembered
from vitrail.capture.structure.cache import SAMPLES, InputForm, Variants, content_of, form_of
from vitrail.capture.structure.journal import Journal
from vitrail.capture.structure.measure import Structure, counted_origin, measure_structure, measured_in_call
from vitrail.capture.structure.origins import Origin
from vitrail.capture.structure.signature import GraphEnds, Route, read_route
from vitrail.capture.structure.texts import as_it_was, for_length, part_of_text, untouched_borders
from vitrail.capture.structure.trace import TRACE
from vitrail.errors import VitrailError
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs

CONTENTS = ("input_ids", "attention_mask", "token_type_ids")
"""Arguments that change from input to input and set no order of tokens."""
MOST_LENGTHS = 2
"""How many routes are remembered of texts whatever their length. Most models treat all lengths alike; of others, all
routes would fail."""
SeenEnds = Callable[[Inputs], GraphEnds]
"""Runs the model as it is on some inputs, and returns where the graph of that run is read."""


def structure_of(model: nn.Module, inputs: Inputs, body: Body) -> Structure:
    """Return what was measured of a shadow for inputs of this form; measured once, then remembered.

    Whether a text of another length is treated in the same way is seen in its pass (`variant_of`).
    """
    mask = inputs.attention_mask
    padded = mask is not None and not bool(mask.bool().all())
    named = (*enumerate(inputs.args), *inputs.kwargs.items())
    deciding = [name for name, x in named if name not in CONTENTS and x is not inputs.shown]
    form = form_of(inputs, padded, body.anatomy, len(body.blocks), body.ran, deciding=deciding)
    if not body.blocks:
        form = InputForm(form.keys[-1:])
    part = part_of_text(inputs) if body.anatomy.causal and body.blocks else None
    if part is not None:
        found = remembered.get(
            model, "long texts", form.keys[-1], lambda: _structure_of_part(model, part, inputs, body, form)
        )
        if found is not None:
            return found
    for key in form.keys:
        known = remembered.get(model, "structure", key, lambda: measure_structure(model, inputs, body, form))
        memory_of(model).call.pop(TRACE, None)  # nothing else is read off it
        found = in_form(known, form)
        if found is not None:
            return found
    return measure_structure(model, inputs, body, form)


def _structure_of_part(model: nn.Module, part: Inputs, inputs: Inputs, body: Body, form: InputForm) -> Structure | None:
    """Return what was measured of a long text on a part of it; None where the whole may be treated in another way."""
    with as_it_was(model):
        found = structure_of(model, part, body)
    if not isinstance(found.origin, Origin):
        return found
    whole = for_length(found.origin, part.shown.shape[1], inputs.shown.shape[1])
    if whole is None or not _as_its_part(model, part, inputs, body, whole):
        return None
    said = f"the structure was measured on {part.shown.shape[1]} of the {inputs.shown.shape[1]} tokens"
    return replace(found, origin=whole, form=form, assumed=(*found.assumed, said))


def _as_its_part(model: nn.Module, part: Inputs, inputs: Inputs, body: Body, origin: Origin) -> bool:
    """Return True if the tokens of a long text go the way of those of its part, in a model of no known family."""
    if not body.blocks[0].discovered:
        return True
    with autograd(gradients=False):
        in_order = isinstance(counted_origin(origin, model, inputs, body), Origin)
        with as_it_was(model):
            of_part = untouched_borders(model, part, body) if in_order else None
        return in_order and of_part == untouched_borders(model, inputs, body)


def in_form(known: Structure, form: InputForm) -> Structure | None:
    """Return a structure for texts of another length; None where tokens are not those of the text in order."""
    before, length = known.form.length, form.length
    if before == length:
        return known
    if (
        before is None
        or length is None
        or not isinstance(known.origin, Origin)
        or known.refusal is not None
        or known.conditional
    ):
        return None
    origin = for_length(known.origin, before, length)
    return None if origin is None else replace(known, origin=origin, form=form)


def measure_all(model: nn.Module, inputs: Inputs, body: Body, form: InputForm) -> Structure:
    """Measure the structure on all samples of these inputs, unless that was done in this call."""
    known = measured_in_call(model).get(content_of(inputs))
    return measure_structure(model, inputs, body, form, most=inputs.batch) if known is None else known


def known_updates(model: nn.Module, form: InputForm) -> dict[int, set[str]]:
    """By block, which sub-layers were found to be added as they are for inputs of this form; filled by passes.

    Where any setting of the model has changed, nothing is known: what is added may hang on it.
    """
    settings = once(model, "settings", lambda: tuple(settings_of(model)))
    return remembered.get(model, "updates", (form.keys[0], settings), dict[int, set[str]])


def variant_of(
    model: nn.Module,
    inputs: Inputs,
    body: Body,
    structure: Structure,
    ends: GraphEnds,
    ends_with: SeenEnds,
    journal: Journal | None = None,
) -> Structure:
    """Return the structure of a pass: the one that is known for what it did to tokens, or one measured on its inputs.

    Args:
        structure: what is known for inputs of this form.
        journal: of the pass, so that one without a graph is known by it.
    """
    form = structure.form
    for key in form.keys:
        met = remembered.get(model, "variants", key, Variants[Structure]).find(ends, partial(in_form, form=form))
        if met is not None:
            found = met[0]
            if journal is not None:
                remembered.get(model, "variants", form.keys[0], Variants[Structure]).keep_journal(journal.key, found)
            return found
    return _new_variant(model, inputs, body, structure, read_route(ends), ends_with, journal)


def _new_variant(
    model: nn.Module,
    inputs: Inputs,
    body: Body,
    structure: Structure,
    route: Route,
    ends_with: SeenEnds,
    journal: Journal | None,
) -> Structure:
    """Return the structure of a pass that did to tokens what none did before, and remember it."""
    fits = _was_measured(model, inputs, body, structure)
    if fits and inputs.batch > SAMPLES:  # samples that were not looked at may be treated in another way
        fits = not route.hidden and _treats_alike(route, inputs, ends_with)
    found = structure if fits else measure_all(model, inputs, body, structure.form)
    if route.hidden:
        return found
    form = structure.form
    remembered.get(model, "variants", form.keys[-1], Variants[Structure]).keep(route, found)
    if form.length is not None:
        remembered.get(model, "variants", form.keys[0], Variants[Structure]).keep(route, found, most=MOST_LENGTHS)
    if journal is not None:
        remembered.get(model, "variants", form.keys[0], Variants[Structure]).keep_journal(journal.key, found)
    return found


def journaled(
    model: nn.Module, inputs: Inputs, body: Body, structure: Structure, journal: Journal, ends_with: SeenEnds
) -> Structure:
    """Return the structure of a pass whose graph does not show what it did: that of another pass with its journal."""
    form = structure.form
    known = remembered.get(model, "variants", form.keys[0], Variants[Structure])
    one = known.journals.get(journal.key)
    found = None if one is None else in_form(one, form)
    if found is not None:
        return found
    ends = ends_with(inputs)
    if ends.complete:
        return variant_of(model, inputs, body, structure, ends, ends_with, journal)
    # Such as frozen weights: what is done before the first block is in no graph.
    fits = _was_measured(model, inputs, body, structure) and inputs.batch <= SAMPLES
    found = structure if fits else measure_all(model, inputs, body, structure.form)
    known.keep_journal(journal.key, found)
    return found


def _treats_alike(route: Route, inputs: Inputs, ends_with: SeenEnds) -> bool:
    """Return True if the first samples alone are treated as all samples are."""
    try:
        return route.nodes_in(ends_with(_first_of(inputs))) is not None
    except (VitrailError, RuntimeError, ValueError, IndexError, AssertionError):  # it takes no fewer samples
        return False


def _first_of(inputs: Inputs) -> Inputs:
    """Return the samples that a structure is measured on."""
    return inputs if inputs.batch <= SAMPLES else inputs.take(torch.arange(SAMPLES))


def _was_measured(model: nn.Module, inputs: Inputs, body: Body, structure: Structure) -> bool:
    """Return True if this call has measured the structure on these inputs, or on a part of a long text."""
    part = part_of_text(inputs) if body.anatomy.causal and body.blocks else None
    if part is not None:
        return True
    return measured_in_call(model).get(content_of(_first_of(inputs))) is structure
