"""`vitrail.models.zoo` under its public name."""

from vitrail.public import forward

__getattr__, __dir__ = forward(__name__, "vitrail.models.zoo")
