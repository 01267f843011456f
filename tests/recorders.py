"""Captures of a computation for machines without a CUDA device.

They compute again under the answers that Python logged, which is what a graph does. A mode refuses every operation by
which the host would wait for the device.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vitrail.capture.graphs import HostAnswers, Replay

WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "lift_fresh", "masked_select"}


class NoWaiting(TorchDispatchMode):
    """Refuse what a CUDA graph cannot record: values taken by the host, and tensors made of Python numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in WAITS:
            raise AssertionError(f"{func} makes the host wait")
        return func(*args, **(kwargs or {}))


def rerun(compute, device):
    """A recording that computes again under the logged answers, as a graph would; for devices without graphs."""
    compute()  # structures are measured in the first run alone
    answers = HostAnswers(device)
    with answers:
        compute()

    def run():
        with answers.again():
            found = compute()
        return found, answers.agree()

    return Replay(run, (answers,))


def strict(compute, device):
    """Record as `rerun` does, and refuse waiting in every replay."""
    recorded = rerun(compute, device)

    def run():
        with NoWaiting():
            return recorded.run()

    return Replay(run, recorded.kept)


class Tape(TorchDispatchMode):
    """The operations of a computation and the memory they read and wrote, as a CUDA graph holds them."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        same = [x.alias_info is not None for x in func._schema.returns]  # a view, or what was written into
        if not all(same) or any(x.alias_info is not None and x.alias_info.is_write for x in func._schema.arguments):
            bare = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}, out))
            self.steps.append((func, *bare, same))
        return out

    @torch.no_grad()
    def play(self):
        for func, args, kwargs, out, same in self.steps:
            again = func(*args, **kwargs)
            old, new = ((x if isinstance(x, (tuple, list)) else (x,)) for x in (out, again))
            aliases = same * (len(old) if isinstance(out, list) else 1)
            for a, b, alias in zip(old, new, aliases, strict=True):
                if isinstance(a, torch.Tensor) and not alias:
                    a.copy_(b)


def taped(compute, device):
    """Record as a CUDA graph does: a replay runs no Python of the computation, and reads the memory of then."""
    compute()
    answers, tape = HostAnswers(device), Tape()
    with answers:
        compute()
    with tape, answers.again():
        found = compute()
        agrees = answers.agree()

    def run():
        tape.play()
        return found, agrees

    return Replay(run, (tape, answers))
