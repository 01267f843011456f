"""The parts of a consensus on the grid of a picture's patches."""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.methods.consensus_smooth import bell
from vitrail.relevance.runner import Runner

Parts = Float[Tensor, "b p t"]
Grid = Float[Tensor, "b p y x"]


def on_grid(runner: Runner, found: Parts) -> Grid:
    """The parts without class tokens and their like, laid out on the grid of patches."""
    assert runner.run.origin.grid is not None
    y, x = runner.run.origin.grid
    return rearrange(runner.run.patches(found), "b p (y x) -> b p y x", y=y, x=x)


def off_grid(runner: Runner, maps: Grid) -> Parts:
    """Such maps as scores of tokens again, all other tokens at zero."""
    return runner.run.among_tokens(maps.flatten(2))


def smoothed_grid(maps: Grid, width: float) -> Grid:
    """Every score shared out among the patches around it; beyond the border, the border's patches stand again.

    What one patch of an object lacks by chance its neighbours have.
    """
    kernel = bell(width, like=maps)
    reach = len(kernel) // 2
    padded = F.pad(maps.flatten(0, 1)[:, None], (reach,) * 4, mode="replicate")
    spread = F.conv2d(F.conv2d(padded, kernel[None, None, None]), kernel[None, None, :, None])
    return spread[:, 0].unflatten(0, maps.shape[:2])
