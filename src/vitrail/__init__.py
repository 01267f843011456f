"""Vitrail explains what any PyTorch Transformer looked at, for images and text."""

from vitrail import targets, zoo
from vitrail.anatomy import Anatomy, TextTower
from vitrail.attribution import Attribution
from vitrail.comparison import Comparison
from vitrail.errors import VitrailError
from vitrail.explain import compare, explain
from vitrail.guided.audit import audit
from vitrail.guided.detail import detail
from vitrail.guided.guide import guide
from vitrail.guided.rewrite import rewrite
from vitrail.guided.transfer import transfer
from vitrail.methods import METHODS
from vitrail.record import record
from vitrail.recording import Layer, Recording

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Anatomy",
    "Attribution",
    "Comparison",
    "Layer",
    "Recording",
    "TextTower",
    "VitrailError",
    "audit",
    "compare",
    "detail",
    "explain",
    "guide",
    "record",
    "rewrite",
    "targets",
    "transfer",
    "zoo",
]
