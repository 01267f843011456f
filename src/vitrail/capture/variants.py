"""What was measured of a model, for each thing that it was seen to do with its tokens.

Inputs of one form may be treated in different ways: tokens that are turned round where the first id says so, early
exits. The signature of a pass tells them apart. One that is not known has its structure measured on the inputs of that
very pass, on all samples unless the first ones are treated as all of them are.
"""

from collections.abc import Callable

import torch
from torch import nn

from vitrail.capture.journal import Journal
from vitrail.capture.long_texts import part_of_text
from vitrail.capture.measure import (
    SAMPLES,
    Structure,
    content_of,
    forms_of,
    measure_all,
    measured_in_call,
    with_length,
)
from vitrail.capture.shadow import remembered
from vitrail.capture.signature import GraphEnds, Route, read_route
from vitrail.errors import VitrailError
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs

MOST_ROUTES = 16
"""How many routes are remembered for one form of input."""


MOST_LENGTHS = 2
"""The same for texts whatever their length. Most models treat all lengths alike; of others, all routes would fail."""
Variants = list[tuple[Route, Structure]]
"""The routes that are known of a form of input, the last used first; of texts also those of any length."""
Journals = dict[tuple[object, ...], Structure]
"""The structures of passes whose graph does not show what they did, by what their journal holds."""
SeenEnds = Callable[[Inputs], GraphEnds]
"""Runs the model as it is on some inputs, and returns where the graph of that run is read."""


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
    length, *forms = forms_of(inputs, body)
    for form in forms:
        known = remembered.get(model, "variants", form, Variants)
        for place, (route, one) in enumerate(known):
            found = one if one.length == length else with_length(one, length)
            if found is None or not route.holds(ends):
                continue
            if place:
                known.insert(0, known.pop(place))
            if journal is not None:
                _keep_journal(model, inputs, body, journal, found)
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
    found = structure if fits else measure_all(model, inputs, body)
    if route.hidden:
        return found
    _, *forms = forms_of(inputs, body)
    for form, most in zip(reversed(forms), (MOST_ROUTES, MOST_LENGTHS), strict=False):
        known = remembered.get(model, "variants", form, Variants)
        known.insert(0, (route, found))
        del known[most:]
    if journal is not None:
        _keep_journal(model, inputs, body, journal, found)
    return found


def journaled(
    model: nn.Module, inputs: Inputs, body: Body, structure: Structure, journal: Journal, ends_with: SeenEnds
) -> Structure:
    """Return the structure of a pass whose graph does not show what it did: that of another pass with its journal."""
    length, form, *_ = forms_of(inputs, body)
    one = remembered.get(model, "journals", form, Journals).get(journal.key)
    found = one if one is None or one.length == length else with_length(one, length)
    if found is not None:
        return found
    ends = ends_with(inputs)
    if ends.complete:
        return variant_of(model, inputs, body, structure, ends, ends_with, journal)
    # Such as frozen weights: what is done before the first block is in no graph.
    fits = _was_measured(model, inputs, body, structure) and inputs.batch <= SAMPLES
    found = structure if fits else measure_all(model, inputs, body)
    _keep_journal(model, inputs, body, journal, found)
    return found


def _keep_journal(model: nn.Module, inputs: Inputs, body: Body, journal: Journal, found: Structure) -> None:
    """Remember the structure of all passes with this journal."""
    known = remembered.get(model, "journals", forms_of(inputs, body)[1], Journals)
    if len(known) >= MOST_ROUTES:
        known.clear()
    known[journal.key] = found


def _treats_alike(route: Route, inputs: Inputs, ends_with: SeenEnds) -> bool:
    """Return True if the first samples alone are treated as all samples are."""
    try:
        return route.holds(ends_with(_first_of(inputs)))
    except (VitrailError, RuntimeError, ValueError, IndexError, AssertionError):  # it takes no fewer samples
        return False


def _first_of(inputs: Inputs) -> Inputs:
    """Return the samples that a structure is measured on."""
    return inputs if inputs.batch <= SAMPLES else inputs.take(torch.arange(SAMPLES))


def _was_measured(model: nn.Module, inputs: Inputs, body: Body, structure: Structure) -> bool:
    """Return True if this call has measured the structure on these inputs, or on a part of a long text."""
    measured = measured_in_call(model)
    part = part_of_text(inputs) if body.anatomy.causal and body.blocks else None
    first = _first_of(inputs if part is None else part)
    return part is not None or measured.get((content_of(first), first.batch)) is structure
