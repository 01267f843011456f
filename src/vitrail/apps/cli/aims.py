"""Targets as a user writes them, and as a reader is told them."""

from collections.abc import Sequence

from vitrail import targets
from vitrail.errors import TargetError
from vitrail.models.loading import Loaded
from vitrail.models.loading.names import find_class, find_token
from vitrail.targets import Target

PREDICTED = "none"


def find_targets(loaded: Loaded, wanted: Sequence[str], versus: str | None) -> list[Target | None]:
    """One target for each that is named; None stands for what the model predicts."""
    if loaded.task == "question":
        if versus is not None or any(text.lower() != PREDICTED for text in wanted):
            raise TargetError(f"{loaded.name} answers questions; its answer is explained, so leave out --target.")
        return [targets.answer_span()]
    found = [_find(loaded, text) for text in wanted or [PREDICTED]]
    if versus is None:
        return [None if index is None else targets.logit(index) for index in found]
    other = _find(loaded, versus)
    if other is None or None in found:
        raise TargetError("--versus contrasts two classes: name one with --target and another with --versus.")
    return [targets.difference(index, other) for index in found if index is not None]


def _find(loaded: Loaded, text: str) -> int | None:
    if text.lower() == PREDICTED:
        return None
    if loaded.task == "causal":
        return find_token(text, loaded.tokenizer, loaded.classes)
    return find_class(text, loaded.class_names, loaded.classes)


def class_index(loaded: Loaded, text: str) -> int | None:
    """The class or next token of this name or index; None for what the model predicts."""
    if loaded.task == "question":
        raise TargetError(f"{loaded.name} answers questions, so it has no classes to contrast: use vitrail explain.")
    return _find(loaded, text)


def title(loaded: Loaded, target: Target) -> str:
    """What is explained, in the names of the model's classes."""
    return loaded.target_name(target)
