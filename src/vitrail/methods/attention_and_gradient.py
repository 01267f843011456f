"""Complete and absolute gradient correction.

Cui, Fan and Chen, arXiv:2605.11392, Eqs. 4 to 6. The positive correction, Eq. 4, is `gae`. The complete one
keeps signs in every product, never clamped in between, so its map is signed: what speaks for the target and what
speaks against it. Paper -> code: the readout's row of R -> relevance.
"""

from vitrail.methods.gae import aggregate
from vitrail.relevance import Walk, complete, magnitude


def build_complete(*, readout: str = "equal") -> Walk:
    """Eq. 5: E_h(G * A), signs kept everywhere.

    Args:
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    return aggregate(complete, readout=readout)


def build_absolute(*, readout: str = "equal") -> Walk:
    """Eq. 6: E_h(|G| * A).

    Args:
        readout: how the rows the prediction reads share the start: `equal`, or by the norm of the `gradient` there.
    """
    return aggregate(magnitude, readout=readout)
