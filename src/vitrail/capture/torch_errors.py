"""Errors of torch that a model causes only where it is differentiated, in the words of an explanation."""

from vitrail.errors import CutGraphError

OVERWRITTEN = (
    "the model writes into a tensor that the gradient needs, as by x[:, i] = y or x += y. Write what it gives into a "
    "new tensor"
)
IN_PLACE = (
    "modified by an inplace operation",
    "being modified inplace",
    "has been modified inplace",
    "used in an in-place operation",
)
"""What torch says of a tensor that was written to."""
FLEX = (
    "flex_attention has no backward pass on a CPU. Explain the model on a GPU, or let it call "
    "F.scaled_dot_product_attention"
)


def explained_error(error: RuntimeError) -> CutGraphError | None:
    """Return what an error of torch means for an explanation; None for any other error."""
    said = str(error)
    if any(words in said for words in IN_PLACE):
        why = OVERWRITTEN
    elif "FlexAttention does not support backward" in said:
        why = FLEX
    else:
        return None
    return CutGraphError(f"a part of the model has no gradient: {why}. Torch says: {' '.join(said.split())[:300]}")
