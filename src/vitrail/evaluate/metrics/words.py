"""Scores of words from scores of word pieces, as in the ERASER evaluation of Chefer et al. (arXiv:2012.09838)."""

import re

import numpy as np
from jaxtyping import Float

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_same, numbers_of, to_array


def word_scores(scores: Numbers, offsets: Numbers, text: str) -> Float[np.ndarray, " w"]:
    """One score per whitespace word of the text: the highest score of its characters.

    Every character carries the score of the piece it lies in. Words without a piece, such as those cut off, get -inf:
    they are never chosen by `token_f1_at_k`. The papers clamp scores at 0 first.

    Args:
        scores: one per piece.
        offsets: `[t, 2]`, where each piece begins and ends in the text; special tokens are empty.
        text: the words joined by whitespace.
    """
    pieces, places = numbers_of(scores, "scores", "t"), to_array(offsets).astype(np.int64)
    check_same((len(pieces), 2), places.shape, "the shape of offsets [t, 2], with t from the scores, and the one given")
    if places.min() < 0 or places.max() > len(text):
        raise InputError(f"offsets run from {places.min()} to {places.max()}, but the text has {len(text)} characters.")
    characters = np.full(len(text), -np.inf)
    for score, (start, end) in zip(pieces, places, strict=True):
        characters[start:end] = score
    spans = [word.span() for word in re.finditer(r"\S+", text)]
    if not spans:
        raise InputError("the text has no words.")
    return np.array([characters[start:end].max() for start, end in spans])
