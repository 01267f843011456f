"""Matrix products whose sums are in float32 at least, whatever the operands are in.

A GPU's matrix units multiply half-precision numbers exactly and add in single precision: there no operand is widened.
"""

import torch
from torch import Tensor

from vitrail.capture.recording import widen

HALF = (torch.float16, torch.bfloat16)


def on_matrix_units(*operands: Tensor) -> bool:
    """Whether a GPU's matrix units multiply these as they are."""
    first = operands[0]
    return first.is_cuda and first.dtype in HALF and all(x.dtype is first.dtype for x in operands)


def wide_product(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix` for one matrix of weights. Where that is in half precision, so is x rounded."""
    x = x.to(matrix.dtype) if matrix.dtype in HALF else x
    if on_matrix_units(x, matrix):
        return torch.mm(x.flatten(0, -2), matrix, out_dtype=torch.float32).unflatten(0, x.shape[:-1])
    return widen(x) @ matrix.to(widen(x).dtype)
