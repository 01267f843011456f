"""Relevance: a row that goes from the last layer to the first.

Every walking method has the form `r <- r + r E_h[w(A_h, G_h)]`, so a product of two n x n matrices is never computed. A
walking method is one formula: what stays with the tokens that ask, and what goes to the tokens that are read.
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
from vitrail.relevance.walk import LayerReader, Result, Walk, readout_row, walk

__all__ = [
    "BACKENDS",
    "LayerReader",
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
    "readout_row",
    "score_gradient",
    "tiles",
    "walk",
]
