"""What several methods ask of a model before it runs."""

from collections.abc import Callable

from torch import nn

from vitrail.errors import AnatomyError
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs


def check_blocks(what: str, *, least: int = 1) -> Callable[[nn.Module, Body, Inputs], None]:
    """A check that the model's blocks are known, and at least so many."""

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if len(body.blocks) < least:
            found = f"only {len(body.blocks)} known" if body.blocks else "none known"
            raise AnatomyError(
                f"{what} needs {'the blocks' if least == 1 else f'at least {least} blocks'} of the model, but there is "
                f"{found} in {type(model).__name__}. Name them: vitrail.Anatomy(blocks=...)."
            )

    return check
