"""Values as JSON holds them. Options and provenance come back as they were, tuples and infinite numbers included."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.errors import OutputError


def encode(value: object) -> Any:  # noqa: ANN401
    """The value as JSON holds it; tuples, infinite numbers and mappings with other keys than text marked as such."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(x) for key, x in value.items()}
        return {"$mapping": [[encode(key), encode(x)] for key, x in value.items()]}
    if isinstance(value, (list, tuple)):
        found = [encode(x) for x in value]
        return {"$tuple": found} if isinstance(value, tuple) else found
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise OutputError(
        f"an option or a line of the provenance is {value!r}, a {type(value).__name__}, which a file cannot hold. Use "
        "text, numbers, booleans, None, and lists, tuples or mappings of them."
    )


def decode(value: Any) -> Any:  # noqa: ANN401
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(x) for x in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(decode(x) for x in value["$tuple"])
    if "$mapping" in value:
        return {decode(key): decode(x) for key, x in value["$mapping"]}
    return {key: decode(x) for key, x in value.items()}


def finite(value: Any) -> Any:  # noqa: ANN401
    """The value with null in place of NaN and infinity, which JSON has no words for."""
    if isinstance(value, Mapping):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_finite(value: Any) -> bool:  # noqa: ANN401
    """Whether no number inside is NaN or infinite."""
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def json_text(value: Any) -> str:  # noqa: ANN401
    """The value as JSON that every reader takes: NaN and infinity are null."""
    return json.dumps(finite(value), allow_nan=False)
