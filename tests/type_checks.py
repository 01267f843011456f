"""Check the annotations of the package while tests run, and do not check the same thing again and again.

`--jaxtyping-packages` decorates every function of the package. Used as it is, that takes more than half of the time of
the tests, for four reasons. Many functions are never called in a process: checks are compiled at the first call.
Functions without a shape in their annotations need no record of sizes: beartype checks them alone. A function inside
another is decorated, which compiles it, whenever the outer one runs: only the first of its instances are checked. Most
calls are of functions that were called hundreds of times before: the first calls of a function are checked, then one
of several.
"""

import dataclasses
import inspect
import random
import sys
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from typing import get_args, get_type_hints

import jaxtyping
import pytest

INSTANCES = 3
"""How many instances of one inner function are checked in a process."""
CALLS, THEN_ONE_OF = 64, 16
"""How many calls of one function are checked in a process, and which of those that follow."""


def check_sparingly() -> None:
    """Replace the decorator that the import hook puts on functions; call it before the package is imported."""
    _with_a_generator_of_its_own()
    everything, made = jaxtyping.jaxtyped, Counter()

    def jaxtyped(*, typechecker):
        def decorated(thing):
            if isinstance(thing, type):
                return _class(thing, decorated, lambda: everything(thing, typechecker=typechecker))
            if "<locals>" in thing.__qualname__:
                made[thing.__code__] += 1
                if jaxtyping.config.jaxtyping_disable or made[thing.__code__] > INSTANCES:
                    return thing
            return _sampled(thing, lambda: checks_of(thing, typechecker)) if thing.__annotations__ else thing

        return decorated

    def checks_of(thing, typechecker):
        return everything(thing, typechecker=typechecker) if _names_shapes(thing) else _plainly(thing, typechecker)

    jaxtyping.jaxtyped = jaxtyped


def _with_a_generator_of_its_own() -> None:
    """Let beartype, which looks at a random item of a list, leave Python's own generator alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "getrandbits", random.Random(0).getrandbits)
        from beartype import beartype

        beartype(_names_shapes)  # imports what checks are made of


_each_call = False


@contextmanager
def each_call_checked():
    """Check every call, however often a function was called before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "_each_call", True)
        yield


@contextmanager
def unchecked():
    """Check nothing, where the checks would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


def _class(found, decorated, otherwise):
    """Data classes are checked where they are made; methods of any class have been decorated already."""
    if not dataclasses.is_dataclass(found):
        return found
    if "__init__" not in vars(found) or _names_shapes(found.__init__):
        return otherwise()
    found.__init__ = decorated(found.__init__)
    return found


def _plainly(function, typechecker):
    """The function with its types checked. beartype rewrites the annotations of what it is given: they are put back."""
    from beartype.roar import BeartypeCallHintViolation

    declared = dict(function.__annotations__)
    checked = typechecker(function)
    function.__annotations__ = declared

    @wraps(function)
    def translated(*args, **kwargs):
        try:
            return checked(*args, **kwargs)
        except BeartypeCallHintViolation as error:  # a TypeError, as it would be without checks
            raise jaxtyping.TypeCheckError(str(error)) from error

    return translated


def _sampled(function, checks_of):
    """The function, checked in its first calls and in one of several that follow. The first makes the checks."""
    calls, checked = 0, None

    @wraps(function)
    def either(*args, **kwargs):
        nonlocal calls, checked
        calls += 1
        if (calls > CALLS and calls % THEN_ONE_OF and not _each_call) or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        checked = checked or checks_of()
        return checked(*args, **kwargs)

    return either


def _names_shapes(function) -> bool:
    """Whether an annotation names a shape, or might: generators run later, and some names exist for pyright alone."""
    later = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(kind(function) for kind in later):
        return True
    try:
        hints = get_type_hints(function)
    except Exception:
        return True
    return any(map(_is_shape, hints.values()))


def _is_shape(hint) -> bool:
    if isinstance(hint, list | tuple):
        return any(map(_is_shape, hint))
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(_is_shape, get_args(hint)))
