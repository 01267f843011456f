"""Annotations of the package are checked while these tests run."""

import random

import jaxtyping
import pytest
import torch
from beartype import beartype
from type_checks import INSTANCES, unchecked

from vitrail import attribution
from vitrail.capture import provenance
from vitrail.targets import Target

HOOKED = jaxtyping.jaxtyped(typechecker=beartype)


def test_shapes_are_checked_in_functions_that_name_them():
    with pytest.raises(jaxtyping.TypeCheckError, match="_resize"):
        attribution._resize(torch.zeros(2, 3), (4, 4))


def test_types_are_checked_in_functions_without_shapes_and_in_data_classes():
    with pytest.raises(jaxtyping.TypeCheckError):
        provenance.fingerprint(3)
    with pytest.raises(jaxtyping.TypeCheckError):
        Target(3)


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
