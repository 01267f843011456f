"""A method as a user writes it: `gae`, `gradtoken(scheme=none, depth=2)`."""

from collections.abc import Sequence
from typing import Any

from vitrail.errors import MethodError, shortened, suggest
from vitrail.methods import DEFAULT_METHOD, METHODS, PREFERRED
from vitrail.methods.option_text import parse_call, read_options

Spec = tuple[str, dict[str, Any]]


def parse_spec(text: str, *, auto: bool = False) -> Spec:
    """The method and its options, each of the option's type.

    Args:
        auto: whether `auto` may be named, which stands for the best method that applies and takes its options.
    """
    name, texts = parse_call(text, "a method")
    if name == DEFAULT_METHOD and not auto:
        raise MethodError(f"{DEFAULT_METHOD} is for vitrail explain, compare and report: name a method here.")
    if name not in METHODS and name != DEFAULT_METHOD:
        raise MethodError(f"unknown method {shortened(name)}. {suggest(name, METHODS)}")
    entry = METHODS[PREFERRED[0] if name == DEFAULT_METHOD else name]

    def kinds(option: str) -> Sequence[type]:
        return (str,) if option == "preset" else entry.kinds_of(option)

    return name, read_options(texts, kinds, [*entry.options, "preset"], name)
