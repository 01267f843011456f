"""The last layer's attention, as it is.

Class-agnostic: no gradient, no earlier layer. Paper -> code: E_h A^L -> `pull(last, rows, attention).mean(1)`.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.methods.options import ROWS, check_choice, without_readout
from vitrail.relevance import Walk, attention, pull


def build(*, rows: str = "readout", zero_readout: bool = False) -> Walk:
    """What the readout attends to in the last layer.

    Args:
        rows: `readout` reads the readout's row, `mean` the mean over all queries.
        zero_readout: set the readout's own entry to zero.
    """
    choose = check_choice("rows", rows, ROWS)

    def step(found: Float[Tensor, "b t"] | None, layer: Layer) -> Float[Tensor, "b t"] | None:
        return pull(layer, choose(layer), attention).mean(dim=1) if layer.is_last else found

    return Walk(lambda last: None, step, without_readout(zero_readout), needs=frozenset())
