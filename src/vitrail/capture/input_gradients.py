"""Gradients at the inputs of any model: at its pictures, sounds and embeddings, and where token ids become vectors.

Nothing has to be known of the blocks, so this works for models with several streams and for those whose attention
cannot be read.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.forward import check_differentiable
from vitrail.capture.outputs import Scalar, read_output
from vitrail.capture.passes import UNMOVED
from vitrail.capture.shadow import autograd, hooks
from vitrail.capture.stream_passes import StreamAnswer
from vitrail.errors import TargetError
from vitrail.models.inputs import Inputs

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class AtInputs:
    """The places where gradients end, by the name of the input, and what the model answered."""

    roots: dict[str, Tensor]
    answer: StreamAnswer

    def gradients(self, scalar: Tensor) -> dict[str, Tensor]:
        """The gradient of a scalar at every input; zero where it does not depend on one."""
        if not scalar.requires_grad:
            raise TargetError(UNMOVED)
        places = list(self.roots.values())
        found = torch.autograd.grad(scalar.sum(), places, retain_graph=True, allow_unused=True)
        if all(gradient is None for gradient in found):
            raise TargetError(UNMOVED)
        pairs = zip(self.roots.items(), found, strict=True)
        return {name: torch.zeros_like(x) if gradient is None else gradient for (name, x), gradient in pairs}


def at_inputs(model: nn.Module, inputs: Inputs, edit: Edit = lambda x: x) -> AtInputs:
    """Run a shadow once with leaves in the place of its inputs.

    Args:
        edit: what becomes of every input before the gradient ends there.
    """
    check_differentiable(model)
    roots: dict[str, Tensor] = {}
    with autograd(gradients=True):
        usable = inputs.usable()

        def leaf(name: str, x: Any) -> Any:  # noqa: ANN401
            if not isinstance(x, Tensor) or not x.is_floating_point() or "mask" in name:
                return x
            roots[name] = edit(x.detach().clone()).requires_grad_()
            return roots[name]

        args = tuple(leaf("pixel_values" if i == 0 else str(i), x) for i, x in enumerate(usable.args))
        some = replace(usable, args=args, kwargs={name: leaf(name, x) for name, x in usable.kwargs.items()})
        table = _table(model)
        handles = [
            module.register_forward_hook(_words(roots, some, edit, first=module is table))
            for module in model.modules()
            if isinstance(module, nn.Embedding)
        ]
        with hooks(handles):
            output = read_output(model(*some.args, **some.kwargs))
    return AtInputs(roots, _answer(model, output, inputs))


def _table(model: nn.Module) -> object:
    """The model's own table of word embeddings, where it names one."""
    found = getattr(model, "get_input_embeddings", None)
    with suppress(NotImplementedError):  # transformers' way to say that there is none
        return found() if callable(found) else None


def _words(roots: dict[str, Tensor], inputs: Inputs, edit: Edit, *, first: bool) -> Callable[..., Tensor | None]:
    """A hook that lets the gradient end where the token ids of an input become vectors."""
    texts = {name: x for name, x in inputs.kwargs.items() if isinstance(x, Tensor) and name.endswith("input_ids")}
    if inputs.args and not inputs.args[0].is_floating_point():
        texts["input_ids"] = inputs.args[0]

    def hook(module: nn.Module, args: tuple, out: Tensor) -> Tensor | None:
        for name, ids in texts.items():
            asked = args[0] if args and isinstance(args[0], Tensor) else None
            if name in roots or asked is None or asked.shape != ids.shape:
                continue
            if first or bool((asked == ids).all()):
                roots[name] = edit(out.detach().clone()).requires_grad_()
                return roots[name].clone()
        return None

    return hook


def _answer(model: nn.Module, output: Any, inputs: Inputs) -> StreamAnswer:  # noqa: ANN401
    batch, tokens = output.logits.shape[0], output.logits.shape[1] if output.logits.ndim == 3 else 1
    masks = (inputs.kwargs.get(name) for name in ("decoder_attention_mask", "attention_mask"))
    fitting = (x for x in masks if isinstance(x, Tensor) and tuple(x.shape) == (batch, tokens))
    valid = next(fitting, torch.ones(batch, tokens, device=output.logits.device)).bool()
    return StreamAnswer(output, inputs, valid, hasattr(model, "prepare_inputs_for_generation"), [])


Attributed = dict[str, Tensor]
"""By the name of the input, what each of its entries is worth."""


def input_x_gradient(model: nn.Module, inputs: Inputs, target: object) -> tuple[Scalar, Attributed, Tensor | None]:
    """Every input times the gradient of the target there."""
    run = at_inputs(model, inputs)
    (part,) = run.answer.scalars(target)
    return part, {name: run.roots[name].detach() * g for name, g in run.gradients(part.scalar).items()}, None


def integrated_gradients(
    model: nn.Module, inputs: Inputs, target: object, *, steps: int
) -> tuple[Scalar, Attributed, Tensor | None]:
    """Every input times the mean gradient on the path from zero, and what the sum lacks of the change of the target."""
    whole = at_inputs(model, inputs)
    (part,) = whole.answer.scalars(target)
    rows = torch.arange(len(part.scalar), device=part.scalar.device)
    total: Attributed = {}
    for step in range(steps):
        share = (step + 0.5) / steps
        run = at_inputs(model, inputs, lambda x, share=share: x * share)
        gradients = run.gradients(part.read(run.answer.output.wide, rows))
        total = {name: g + total[name] if name in total else g for name, g in gradients.items()}
    found = {name: whole.roots[name].detach() * g / steps for name, g in total.items()}
    zero = part.read(at_inputs(model, inputs, torch.zeros_like).answer.output.wide, rows).detach()
    sums = [x.reshape(len(rows), -1).sum(dim=1) for x in found.values() if x.shape[0] == len(rows)]
    if len(sums) < len(found):  # packed inputs have no axis of samples
        return part, found, None
    return part, found, part.scalar.detach() - zero - torch.stack(sums).sum(dim=0)
