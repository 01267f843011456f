"""Options and provenance as JSON holds them, so that tuples and numbers come back as they were."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.errors import OutputError


def encode(value: object) -> Any:  # noqa: ANN401
    """The value as JSON holds it, tuples and mappings with other keys than text marked as such."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(x) for key, x in value.items()}
        return {"$mapping": [[encode(key), encode(x)] for key, x in value.items()]}
    if isinstance(value, (list, tuple)):
        found = [encode(x) for x in value]
        return {"$tuple": found} if isinstance(value, tuple) else found
    if isinstance(value, np.generic):
        return value.item()
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
    if "$tuple" in value:
        return tuple(decode(x) for x in value["$tuple"])
    if "$mapping" in value:
        return {decode(key): decode(x) for key, x in value["$mapping"]}
    return {key: decode(x) for key, x in value.items()}
