"""Annotations of the package are checked while these tests run."""

import random

import jaxtyping
import pytest
import torch
from beartype import beartype
from type_checks import CALLS, INSTANCES, THEN_ONE_OF, each_call_checked, unchecked

from vitrail import attribution
from vitrail.capture import provenance
from vitrail.targets import Target

HOOKED = jaxtyping.jaxtyped(typechecker=beartype)


def test_shapes_are_checked_in_functions_that_name_them():
    with each_call_checked(), pytest.raises(jaxtyping.TypeCheckError, match="_resize"):
        attribution._resize(torch.zeros(2, 3), (4, 4))


def test_types_are_checked_in_functions_without_shapes_and_in_data_classes():
    with each_call_checked(), pytest.raises(jaxtyping.TypeCheckError):
        provenance.fingerprint(3)
    with each_call_checked(), pytest.raises(jaxtyping.TypeCheckError):
        Target(3)


@pytest.mark.parametrize("given", [jaxtyping.Float[torch.Tensor, "b b"], torch.Tensor | None])
def test_the_first_calls_are_checked_and_then_one_of_several(given):
    def answer(x):
        return 1

    answer.__annotations__, answer.__qualname__ = {"x": given, "return": int}, "answer"
    checked, wrong = HOOKED(answer), torch.zeros(2, 3) if given != torch.Tensor | None else 3
    refused = []
    for number in range(CALLS + 2 * THEN_ONE_OF):
        try:
            checked(wrong)
        except jaxtyping.TypeCheckError:
            refused.append(number)
    assert refused[:CALLS] == list(range(CALLS))
    assert len(refused) == CALLS + 2


def test_the_first_instances_of_an_inner_function_are_checked():
    def inner():
        @HOOKED
        def shaped(x: jaxtyping.Float[torch.Tensor, "b b"]) -> int:
            return 1

        return shaped

    made = [inner() for _ in range(INSTANCES + 1)]
    for checked in made[:INSTANCES]:
        with pytest.raises(jaxtyping.TypeCheckError):
            checked(torch.zeros(2, 3))
    assert made[INSTANCES](torch.zeros(2, 3)) == 1


def test_checks_draw_no_random_numbers():
    @HOOKED
    def count(items: list[int]) -> list[int]:
        return items

    before = random.getstate()
    with pytest.raises(jaxtyping.TypeCheckError):
        count(["a", "b"])
    assert count([1, 2, 3]) == [1, 2, 3]
    assert random.getstate() == before


def test_nothing_is_checked_where_that_was_asked_for():
    with unchecked(), pytest.raises(AttributeError):
        provenance.fingerprint(3)
