"""Caches of keys and values among the arguments of a model: the caller's own stay as they are."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from vitrail.errors import InputError

NAMES = frozenset({"past_key_values", "past_key_value", "past", "mems"})
"""Keywords under which models take what they computed of earlier tokens."""


def copy_caches(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """A hook before a model runs: it fills a copy of an empty cache; one that holds tokens is refused."""
    caches = {name: x for name, x in kwargs.items() if _is_cache(name, x)}
    if not caches:
        return None
    for name, cache in caches.items():
        if (held := _tokens_in(cache)) > 0:
            raise InputError(
                f"{name} holds {held} earlier tokens, which an explanation of the tokens after them would leave out. "
                "Pass the whole text as input_ids, and no cache."
            )
    # One that is made in advance has more places than the text has tokens; the model works as well without it.
    own = {name: None if getattr(x, "is_compileable", False) else copy.deepcopy(x) for name, x in caches.items()}
    return args, {**kwargs, **own}


def _is_cache(name: str, x: object) -> bool:
    return callable(getattr(x, "get_seq_length", None)) or (name in NAMES and x is not None)


def _tokens_in(cache: object) -> int:
    """How many tokens a cache holds: as it says, or by the size of the first tensor in it."""
    length = cast(Callable[[], Any] | None, getattr(cache, "get_seq_length", None))
    if callable(length):
        return int(length())
    waiting: list[object] = [cache]
    while waiting:
        x = waiting.pop()
        if isinstance(x, Tensor) and x.ndim > 1 and x.numel() > 0:
            return x.shape[-2]
        waiting += list(x.values()) if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else []
    return 0
