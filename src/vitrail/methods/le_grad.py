"""LeGrad: the positive gradient of attention in every block, for the target as the model's head reads it there.

Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity", ICCV
2025, arXiv:2404.03214. Paper -> code: Z^l -> the output of block l, its mean over tokens -> mean_everywhere, s^l -> the
target computed from it, grad A^l -> probs_grad. The paper compares an image with a text; here the target is a logit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer, widen
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.errors import MethodError, OptionError, suggest
from vitrail.methods.options import ROWS, check_blocks, check_choice
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Result, positive_gradient, pull
from vitrail.relevance.runner import RerunMethod, Runner, Tokens, leaving, scalar_from

NEEDS = frozenset({"output_grad"})
MOST_ENTRIES = 2**26
"""Entries of the tokens that the head is given at once: 256 MB in float32."""


def mean_everywhere(tokens: Tokens, valid: Bool[Tensor, "b t"]) -> Tokens:
    """The mean of the real tokens in every position, so that whatever the head reads, it reads the mean."""
    weights = valid.to(tokens.dtype)[:, :, None]
    return ((tokens * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)).expand_as(tokens)


Read = Callable[[Tokens, Bool[Tensor, "b t"]], Tokens]
READS: dict[str, Read] = {"mean": mean_everywhere, "readout": lambda tokens, valid: tokens}
"""What the head is given of a block's tokens: their mean, or the tokens, of which it reads what it always reads."""


def sensitivity(runner: Runner, indices: Sequence[int], read: Read) -> list[Tokens]:
    """The gradient of s^l where it leaves each of these blocks, with the head on all of them at once."""
    given = [leaving(runner, index).detach() for index in indices]
    tokens = [widen(x).requires_grad_() for x in given]
    heads = torch.cat([read(x, runner.run.valid).to(given[0].dtype) for x in tokens])
    scalar = scalar_from(runner, heads, copies=len(indices))
    return list(torch.autograd.grad(scalar.sum(), tokens))


def sensitivities(runner: Runner, indices: Sequence[int], read: Read) -> dict[int, Tokens]:
    """The same for any number of blocks, as many at once as fit."""
    size = max(1, MOST_ENTRIES // leaving(runner, indices[0]).numel())
    found: dict[int, Tokens] = {}
    for start in range(0, len(indices), size):
        group = indices[start : start + size]
        try:
            found |= dict(zip(group, sensitivity(runner, group, read), strict=True))
        except (RuntimeError, ValueError, IndexError, MethodError):  # the head takes one batch only, or memory is short
            if len(group) == 1:
                raise
            found |= {index: sensitivity(runner, [index], read)[0] for index in group}
    return found


class _Sent(torch.autograd.Function):
    """A scalar for each sample whose gradient at each of several tensors is given: no product with them is formed."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *outputs: Tensor) -> Float[Tensor, " b"]:  # noqa: ANN401
        ctx.save_for_backward(*gradients)
        return outputs[0].new_zeros(len(outputs[0]), dtype=torch.promote_types(outputs[0].dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, scale: Float[Tensor, " b"]) -> tuple[Tensor | None, ...]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *(g * scale.to(g.dtype)[:, None, None] for g in ctx.saved_tensors)


def build(*, blocks: str | int = "all", tokens: str = "mean") -> RerunMethod:
    """The positive gradient of every block's attention, for the prediction read from that block, added.

    Args:
        blocks: how many of the last blocks take part, or `all`.
        tokens: read the prediction from the `mean` of a block's tokens, and the map as the mean over queries; or both
            where the model itself reads them (`readout`).
    """
    read, rows = check_choice("tokens", tokens, READS), ROWS[tokens]
    if isinstance(blocks, str) and blocks != "all":
        raise OptionError(f"blocks={blocks!r} is not a choice. {suggest(blocks, ['all'])} Or a number of blocks.")

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        check_blocks("le_grad")(model, body, inputs)
        if isinstance(blocks, int) and not 1 <= blocks <= len(body.blocks):
            raise OptionError(f"blocks={blocks}, but the model has {len(body.blocks)}.")

    def explain(runner: Runner) -> Result:
        depth = len(runner.body.blocks)
        chosen = range(0 if isinstance(blocks, str) else depth - blocks, depth)
        gradients = sensitivities(runner, chosen, read)
        # In half precision a small gradient would vanish on its way through the block: send it at size one.
        smallest = torch.finfo(torch.float32).tiny
        sizes = {index: g.flatten(1).abs().amax(dim=1).clamp(min=smallest) for index, g in gradients.items()}
        outputs = [leaving(runner, index) for index in gradients]
        sent = [(g / sizes[i][:, None, None]).to(x.dtype) for (i, g), x in zip(gradients.items(), outputs, strict=True)]

        def step(found: Float[Tensor, "b t"], layer: Layer) -> Float[Tensor, "b t"]:
            if layer.index not in sizes:
                return found
            return found + sizes[layer.index][:, None] * pull(layer, rows(layer), positive_gradient).mean(dim=1)

        scalar: Tensor = _Sent.apply(sent, *outputs)  # pyright: ignore[reportAssignmentType]
        alone = replace(runner, part=replace(runner.part, scalar=scalar, position=None, plain=False, needed=False))
        start = lambda last: torch.zeros_like(last.valid, dtype=last.readout.dtype)  # noqa: E731
        return alone.read_by(LayerReader(step, start, needs=NEEDS))[0]

    # Each block has its own scalar, computed from its output alone: no gradient may come from later blocks.
    return RerunMethod(explain, PassOptions(per_block=True), NEEDS, check=check)
