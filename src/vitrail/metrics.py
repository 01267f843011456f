"""`vitrail.evaluate.metrics` under its public name."""

from vitrail.public import forward

__getattr__, __dir__ = forward(__name__, "vitrail.evaluate.metrics")
