"""The answer of a model whose blocks are not known, and the scalars that a target makes of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.capture.outputs import Output, Scalar, parts, read_output
from vitrail.capture.recording.continuations import continued
from vitrail.capture.seams import AttentionCall
from vitrail.capture.structure.blocks import is_causal
from vitrail.models.inputs import Inputs
from vitrail.targets import Target, as_target


@dataclass(frozen=True)
class StreamAnswer:
    """The answer of a model with streams, and how its answers are read."""

    output: Output
    inputs: Inputs
    valid: Tensor  # which positions are real where the model answers at every token
    causal: bool  # whether it predicts the next token
    calls: list[AttentionCall]  # the attention of the tokens it answers at
    compares: bool = False  # whether pictures are compared with texts

    def scalars(self, target: object) -> tuple[Scalar, ...]:
        """The scalars of a target."""
        chosen = as_target(target)
        if isinstance(chosen, Target) and chosen.name == "continuation":
            return (continued(self.output, chosen, self.inputs, self.calls),)
        return parts(self.output, chosen, self.valid, causal=self.causal)


def read_answer(
    model_output: object, inputs: Inputs, calls: list[AttentionCall], *, generates: bool = False
) -> StreamAnswer:
    """The answer of a pass.

    Args:
        generates: whether the model is known to predict the next token; else its attention shows it.
    """
    output = read_output(model_output)
    batch, tokens = output.logits.shape[0], output.logits.shape[1] if output.logits.ndim == 3 else 1
    decodes = any(name.startswith("decoder_input") for name in inputs.kwargs)
    names = ("decoder_attention_mask",) if decodes else ("decoder_attention_mask", "attention_mask")
    masks = [inputs.kwargs.get(name) for name in names]
    fitting = (x for x in masks if isinstance(x, Tensor) and tuple(x.shape) == (batch, tokens))
    valid = next(fitting, torch.ones(batch, tokens, device=output.logits.device)).bool()
    own = [x for x in calls if all(y is not None and y.shape[-2] == tokens for y in (x.query, x.key))]
    causal = generates or any(_causal(call, tokens) for call in own)
    compares = getattr(model_output, "logits_per_image", None) is not None
    return StreamAnswer(output, inputs, valid, causal, own, compares)


def _causal(call: AttentionCall, tokens: int) -> bool:
    """Return True if no query of self-attention sees a later key."""
    shown = call.weights if call.weights is not None else call.mask
    if call.causal or tokens == 1:
        return True
    return shown is not None and shown.shape[-2:] == (tokens, tokens) and is_causal(call)
