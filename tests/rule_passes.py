"""A function on tensors, run by the rules of a table."""

from contextlib import contextmanager

import torch
from torch import nn

from vitrail.capture.recording.hooks import Capture
from vitrail.capture.recording.pass_options import PassPlan
from vitrail.models.anatomy import Anatomy, Body
from vitrail.relevance.lrp import propagating

B, T, D = 2, 3, 4


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@contextmanager
def roots(table, *inputs):
    owner = nn.Module()
    capture = Capture(PassPlan(Body(Anatomy(), (), None, owner, None)))
    made = [capture.root(x) for x in inputs]
    with propagating(table, owner, capture):
        yield made


def relevance(table, function, *inputs, seed=9):
    """The value of a function, and what its inputs get of the relevance of its result."""
    with roots(table, *inputs) as given:
        out = function(*given)
    r = random(*out.shape, seed=seed)
    return out.detach(), torch.autograd.grad(out, given, r, materialize_grads=True), r


X, Y = random(B, T, D, seed=1), random(B, T, D, seed=2)
