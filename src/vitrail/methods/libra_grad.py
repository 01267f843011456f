"""LibraGrad: a gradient whose parts add up to the logit, read at the input, at all layers, or with all biases.

Mehri, Soleymani Baghshah and Pilehvar, "LibraGrad: Balancing Gradient Flow for Universally Better Vision Transformer
Attributions", CVPR 2025, arXiv:2411.16760. The forward pass is the model's own. In the backward pass

* attention maps are constants;
* the deviation of a norm is a constant;
* an activation is its input times a constant, `act(u) / u`;
* the gradient of a product of two branches, as of a gated feed-forward layer, is halved.

Then `sum_t x_l ds/dx_l` plus what the biases above layer l bring is the logit without the head's bias, for every l
(FullGrad-completeness). Paper -> code: x_l -> the state that enters block l, x_L -> the one that leaves the last,
FullGrad+ -> `maps="full"`, SkipPLUS -> `start_layer`.

Ours beyond the paper: a function that is not zero at zero, such as a sigmoid, is this value, as a bias, plus its input
times a constant; and the weight that a router gives to an expert is a constant, as an attention map is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.outputs import gradients_at
from vitrail.capture.recording.layer import widen
from vitrail.capture.residuals import incomplete
from vitrail.capture.shadow import dtypes_of
from vitrail.errors import MethodError, OptionError
from vitrail.methods.attn_lrp import evenly
from vitrail.methods.conservative_lrp import CONSERVATIVE, attention, constant, norm_gradient, router_constant
from vitrail.methods.options import check_choice, check_rules, under_rules
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import by_gradient
from vitrail.relevance import Result
from vitrail.relevance.lrp import Operation, RuleSet
from vitrail.relevance.lrp.biases import NOTED, BiasNote, heads, note_bias, notes_of, value_at_zero
from vitrail.relevance.lrp.operation import norm_parts
from vitrail.relevance.runner import RerunMethod, Runner

LEVEL = "embedding_output"
Scores = Float[Tensor, "b t"]
States = Float[Tensor, "b t d"]
AT_ZERO = 0.5
"""What stands for `act(u) / u` where u is zero."""


def ratio(value: Tensor, x: Tensor, at_zero: float = 0.0) -> Tensor:
    """The constant of an activation: `(f(u) - f(0)) / u`, and one half where u is zero."""
    x = widen(x)
    found = widen(value) - at_zero if at_zero else widen(value)
    return (found / x).masked_fill_(x == 0, AT_ZERO)


def layer_norm(operation: Operation) -> Tensor:
    """A layer norm whose deviation is a constant; on a CPU by torch's own statistics, which are quicker than `var`."""
    x, weight, eps, axes = norm_parts(operation)

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        if x.is_cuda:
            return (norm_gradient(g, x, weight, eps, axes),)
        scale = torch.native_layer_norm(widen(x), x.shape[axes[0] :], None, None, eps)[2]
        scaled = (widen(g) if weight is None else widen(g) * weight) * scale
        return ((scaled - scaled.mean(dim=axes, keepdim=True)).to(x.dtype),)

    return operation.overridden(pullback, x)


def activation(operation: Operation) -> Tensor:
    """An activation as its input times a constant."""
    at_zero, x = value_at_zero(operation), operation.active[0]
    out = operation.run()  # last: the result that is kept is the model's

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        """The value is computed again: kept, it would be the largest tensor of a block."""
        with torch.no_grad():
            value = operation.again({id(operation.active[0]): x})
            return ((ratio(value, x, at_zero).mul_(widen(g))).to(x.dtype),)

    return operation.passing(out, pullback, x)


def gate(operation: Operation) -> Tensor:
    """An entrywise product: an activation written out, such as `x sigmoid(x)`, or two branches."""
    x = operation.source
    if x is None:
        return evenly(operation)
    out = operation.run()
    value = out.detach()
    return operation.passing(out, lambda g, x: ((ratio(value, x).mul_(widen(g))).to(x.dtype),), x)


LIBRA = RuleSet(
    "LibraGrad",
    {
        **CONSERVATIVE.rules,
        "layer_norm": layer_norm,
        "attention": attention((0.0, 0.0, 1.0)),
        "softmax": constant,
        "product": evenly,
        "einsum": evenly,
        "gate": router_constant(gate),
        "activation": activation,
    },
    otherwise=CONSERVATIVE.otherwise,
    notes=dict.fromkeys(NOTED, note_bias),
)
MAPS = ("full", "layers", "input")


def at_states(runner: Runner, states: Sequence[Tensor]) -> tuple[list[States], list[States], Tensor | None]:
    """States of the stream, the gradients of the scalar there, and what the backward pass was divided by."""
    run, blocks = runner.run, runner.body.blocks
    for note in notes_of(run.capture.notes):
        note.brought = None
    found, scale = gradients_at(runner.part, states, run.output.wide, again=True, each_sample=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(states, found, strict=True)]
    each = [_by_token(runner, x.detach(), batch_first=blocks[0].batch_first) for x in states]
    arrived = [_by_token(runner, g, batch_first=blocks[0].batch_first) for g in gradients]
    if scale is not None:
        arrived = [g * scale[:, None, None] for g in arrived]
    return each, arrived, scale


def _by_token(runner: Runner, x: Tensor, *, batch_first: bool) -> States:
    """A state of the stream as `[b, t, d]`."""
    shape = runner.run.valid.shape
    if x.ndim == 2 and x.shape[0] == shape.numel():
        return widen(x).view(*shape, -1)
    moved = x if batch_first or x.ndim != 3 else x.transpose(0, 1)
    if moved.ndim != 3 or moved.shape[:2] != shape:
        raise MethodError(
            f"libra_grad reads the states of the same {tuple(shape)} tokens at every block, but one of them has the "
            f"shape {tuple(x.shape)}. Use conservative_lrp."
        )
    return widen(moved)


def _placed(note: BiasNote, brought: Tensor, read: Scores, *, batch_first: bool) -> Scores | None:
    """Return the scores of a bias at the tokens that it was added to; None if they are not known.

    Args:
        read: the weights of the tokens that are read after the last block, among which what is added after that to
            no token, but to a whole sample, is shared.
    """
    batch, tokens = read.shape
    if note.block is None and brought.shape in ((batch,), (batch, 1)) and tokens > 1:
        return brought.reshape(batch, 1) * read
    if brought.shape == (batch * tokens,) and note.tokens_first:
        brought = brought.view(tokens, batch)
    elif brought.ndim == 1 and note.rows is not None:
        brought = note.rows.back(brought)
    elif brought.ndim == 3 and len(brought) == batch and brought.shape[1] != tokens == brought.shape[2]:
        brought = brought.sum(dim=1)  # heads
    tokens_first = note.tokens_first or not batch_first
    if batch == tokens and note.block is None and tokens_first:  # a model may put samples first before its head
        return None
    if brought.shape == (tokens, batch) and (tokens_first or batch != tokens):
        return brought.T
    return brought if brought.shape == (batch, tokens) else None


@dataclass(frozen=True)
class Biases:
    """The contributions of the biases of a pass to the scalar.

    Args:
        above: at each token, without those of the head.
        heads: those of the head, for each sample.
        unplaced: the first whose tokens are not known, and the shape of what it was added to, channels aside.
    """

    above: Scores
    heads: Float[Tensor, " b"]
    unplaced: tuple[str, tuple[int, ...]] | None = None


def biases_of(runner: Runner, leaving: States, scale: Tensor | None) -> Biases:
    """Return the contributions of the biases of a pass, after its backward pass.

    Args:
        leaving: the gradient at what leaves the last block.
        scale: what the backward pass was divided by.
    """
    run, notes = runner.run, notes_of(runner.run.capture.notes)
    read = by_gradient(leaving, run.valid)[0].to(leaving.dtype)
    above, of_heads, last = torch.zeros_like(read), torch.zeros_like(read[:, 0]), heads(run.output.logits)
    for note in notes:
        if note.brought is None:
            continue
        brought = note.brought.to(read.dtype)
        if note in last and len(brought) == len(read):
            of_heads = of_heads + brought.flatten(1).sum(dim=1) if brought.ndim > 1 else of_heads + brought
            continue
        placed = _placed(note, brought, read, batch_first=runner.body.blocks[0].batch_first)
        if placed is None:
            return Biases(above, of_heads, unplaced=(note.where, tuple(brought.shape)))
        above = above + placed
    if scale is not None:
        above, of_heads = above * scale[:, None], of_heads * scale
    return Biases(above, of_heads)


def linear_part(runner: Runner) -> Float[Tensor, " b"] | None:
    """The logits times the gradient of the scalar there: a logit itself, or the part of a scalar linear in logits."""
    logits = runner.run.output.wide
    (gradient,) = torch.autograd.grad(runner.part.scalar.sum(), logits, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    return (gradient * logits.detach().masked_fill(gradient == 0, 0.0)).flatten(1).sum(dim=1)


def build(*, maps: str = "full", start_layer: int = 0) -> RerunMethod:
    """The gradient whose parts add up to the logit, times the states of all layers, and times the biases.

    Args:
        maps: `full` sums states of all layers and biases, `layers` states alone, `input` takes the state that enters
            the first block.
        start_layer: the first state of the sum, 0 for the one that enters the first block; biases are all taken.
    """
    check_choice("maps", maps, dict.fromkeys(MAPS))
    if maps == "input" and start_layer != 0:
        raise OptionError("start_layer is for maps='full' and maps='layers': maps='input' sums over no layers.")
    at_level = check_rules("libra_grad", LEVEL)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        at_level(model, body, inputs)
        if not 0 <= start_layer <= len(body.blocks):
            raise OptionError(f"start_layer={start_layer}, but the states of the model are 0 to {len(body.blocks)}.")

    def explain(runner: Runner) -> Result:
        return _explain(runner, maps, start_layer)

    needs = frozenset() if maps == "input" else frozenset({"entering"})
    return RerunMethod(explain, under_rules(LIBRA, LEVEL, "model"), needs=needs, check=check)


def _explain(runner: Runner, maps: str, start_layer: int) -> Result:
    """The map, and what the state that enters the first block and all biases lack of the logit."""
    run, blocks = runner.run, runner.run.capture.blocks
    (root,), leaving = run.capture.roots, blocks[-1].states["leaving"]
    between = [] if maps == "input" else [captured.states["entering"] for captured in blocks[1:]]
    states, gradients, scale = at_states(runner, [root, *between, leaving])
    runner.defer_zero(gradients[0], axis=0)
    biases = biases_of(runner, gradients[-1], scale)
    found = [(x * g).sum(dim=2) for x, g in zip(states, gradients, strict=True)]
    scores = found[0] if maps == "input" else torch.stack(found[start_layer:]).sum(dim=0)
    if maps == "full":
        if biases.unplaced is not None:
            where, shape = biases.unplaced
            raise MethodError(
                f"libra_grad(maps='full') gives what a bias brings to the token that it was added to. Which token that "
                f"is is not known of the bias in the module {where!r}, which was added to a tensor of shape {shape}, "
                "channels aside. Use libra_grad(maps='layers')."
            )
        scores = scores + biases.above
    linear = linear_part(runner)
    if biases.unplaced is not None or linear is None:
        return Result(scores, assumed=(UNKNOWN,))
    residual = linear - biases.heads - biases.above.sum(dim=1) - found[0].sum(dim=1)
    size = found[0].abs().amax(dim=1)
    wrong = incomplete(residual, linear - biases.heads, torch.zeros_like(linear), size, dtypes_of(runner.model))
    return Result(scores, residual=residual, assumed=(LACKS,) * bool(wrong.any()))


UNKNOWN = "whether the scores at the first block and the biases add up to the logit was not measured"
LACKS = (
    "the scores at the first block and the biases do not add up to the logit (see residual): a part of the model is no "
    "product, norm, activation or sum that the rules know"
)
