"""Relevance: a row that goes from the last layer to the first.

Every walking method has the form `r <- r + r E_h[w(A_h, G_h)]`, so a product of two n x n matrices is never computed. A
walking method is three small functions over the layers of a pass, or of a finished recording.
"""

from vitrail.relevance.backends import BACKENDS, choose_backend, pull, push, tiles
from vitrail.relevance.dense import (
    attention,
    complete,
    gradient,
    magnitude,
    positive,
    positive_gradient,
    score_gradient,
)
from vitrail.relevance.walk import Result, Walk, walk

__all__ = [
    "BACKENDS",
    "Result",
    "Walk",
    "attention",
    "choose_backend",
    "complete",
    "gradient",
    "magnitude",
    "positive",
    "positive_gradient",
    "pull",
    "push",
    "score_gradient",
    "tiles",
    "walk",
]
