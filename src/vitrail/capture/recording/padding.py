"""A check that a model hides a word wherever it stands: only then is the word padding, masked by the model itself."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from vitrail.capture.outputs import run_model
from vitrail.capture.recording.reach import unattended
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import call_shape
from vitrail.models.inputs import Inputs

FirstCall = Callable[[Tensor], AttentionCall | None]
"""Run the model on other words up to its first attention call."""


class _FirstCallSeen(Exception):
    """The first attention call was made: no more of the model has to run."""


def first_call(model: nn.Module, inputs: Inputs, words: Tensor) -> AttentionCall | None:
    """Return the first attention call of a model on other words; no more of it is run."""
    seen: list[AttentionCall] = []

    def emit(call: AttentionCall) -> None:
        seen.append(call)
        raise _FirstCallSeen

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with attention_calls(emit):
                run_model(model, replace(inputs.showing(words), ids=words))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # also that of a model which refuses these words: nothing is known then
            pass
    return seen[0] if seen else None


def hides_word(
    hidden: Bool[Tensor, "b t"],
    ids: Int[Tensor, "b t"],
    index: Int[Tensor, " t"],
    call: AttentionCall,
    run: FirstCall,
) -> Bool[Tensor, ""]:
    """Return True if the hidden word is hidden at other places too, in every sample.

    Every second token that is seen becomes the hidden word. Attention that leaves a token out for another reason, such
    as sparse attention or a last token that asks alone, does not hide them all.

    Args:
        hidden: the words that no query of the first attention call sees, all of them the same.
        index: which tokens are words.
        call: the first attention call.
        run: runs the model on other words up to that call.
    """
    word = ids.masked_fill(~hidden, torch.iinfo(ids.dtype).min).amax()
    seen = ~hidden
    moved = seen & (seen.cumsum(dim=1) % 2 == 0) & hidden.any()
    again = run(torch.where(moved, word, ids))
    found = None if again is None or call_shape(again) != call_shape(call) else unattended(again, len(ids))
    if found is None:
        return torch.zeros((), dtype=torch.bool, device=hidden.device)
    found = found if found.shape == hidden.shape else found[:, index]
    return (found == (hidden | moved)).all() & moved.any()
