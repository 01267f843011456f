"""The structure of a model as it was measured, and a self-test: is what is recorded what the model computed?

For every attention layer A is computed again from the recorded queries and keys, multiplied with the recorded values
and compared with the output the model's own kernel gave. The logits are compared, bit for bit, with those of a
run without hooks.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.outputs import read_output
from vitrail.capture.recording.forward import find_body, record
from vitrail.capture.recording.layer import Layer, widen
from vitrail.capture.shadow import autograd, hooks, shadow
from vitrail.capture.structure.blocks import BlockSite, CallSite, discover
from vitrail.capture.structure.measure import Structure, no_origin
from vitrail.capture.structure.origins import Origin
from vitrail.capture.structure.sequences import has_streams
from vitrail.capture.structure.variants import structure_of
from vitrail.errors import SeamError, VitrailError
from vitrail.models.anatomy import Anatomy, known_anatomy
from vitrail.models.inputs import Inputs, read_inputs

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""The largest error against the largest output: about a hundred roundings of the dtype."""


@dataclass(frozen=True)
class LayerCheck:
    """One attention layer.

    Args:
        error: the largest |A v - z| over real queries, relative to the largest |z|; None where the seam captures the
            weights of hand-written attention but not its values, so there is nothing to compare.
    """

    index: int
    heads: int
    key_value_heads: int
    head_width: int | None
    queries: int
    keys: int
    seam: str
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """Return True if the recorded attention explains the recorded output."""
        return self.error is None or self.error <= self.tolerance


@dataclass(frozen=True)
class Examination:
    """The findings in a model, and whether it can be trusted."""

    family: str
    model_class: str
    prefix: int
    readout: str
    grid: tuple[int, int] | None
    rows: tuple[LayerCheck, ...]
    same_logits: bool

    @property
    def passed(self) -> bool:
        """Return True if every layer agrees and recording changes nothing."""
        return self.same_logits and all(row.passed for row in self.rows)


def examine(model: object, inputs: Tensor | Mapping[str, Any], anatomy: Anatomy | None = None) -> Examination:
    """Return the recorder's view of a model, checked against the model itself.

    Args:
        inputs: any input the model takes, as for `vitrail.explain`.
        anatomy: where the parts of the model are, if it is of no known family.
    """
    read = read_inputs(inputs)
    with shadow(model) as own:
        if has_streams(own, read, anatomy):
            raise SeamError(
                f"{type(model).__name__} has several streams of tokens, or merges its tokens on the way, and this test "
                "compares the layers of one stream. vitrail.explain measures its streams in every call, and refuses "
                "what it cannot measure."
            )
    recording = record(model, inputs, _largest_logits, keep={"output_grad"}, anatomy=anatomy)
    with shadow(model) as own:
        body, plain = find_body(own, anatomy, read), _plain_logits(own, read)
        origin = structure_of(own, read, body).origin
    if isinstance(origin, str):
        raise no_origin(origin, body)
    return Examination(
        family=body.anatomy.name,
        model_class=type(model).__name__,
        prefix=body.anatomy.prefix if origin.prefix is None or read.kind == "text" else origin.prefix,
        readout=str(body.anatomy.readout),
        grid=origin.grid,
        rows=tuple(_row(layer) for layer in recording.layers),
        same_logits=torch.equal(plain.nan_to_num(), recording.logits.nan_to_num()),  # padding may give NaN
    )


def _largest_logits(logits: Tensor) -> Tensor:
    """A scalar that every model has: the largest logit, of all tokens, because any one of them may be padding."""
    return logits.amax(dim=-1).nan_to_num().reshape(len(logits), -1).sum(dim=1)


def _row(layer: Layer) -> LayerCheck:
    weights, value = layer.weights, layer.value
    operands = layer.get("query") if weights is None else weights
    keys = layer.get("key").shape[2] if weights is None else weights.shape[3]
    reference = layer.output if layer.output is not None else operands
    return LayerCheck(
        index=layer.index,
        heads=operands.shape[1],
        key_value_heads=operands.shape[1] if value is None else value.shape[1],
        head_width=None if value is None else value.shape[3],
        queries=operands.shape[2],
        keys=keys,
        seam="fused" if weights is None else "hand-written",
        error=_error(layer),
        tolerance=TOLERANCES.get(reference.dtype, TOLERANCES[torch.float32]),
    )


def _error(layer: Layer) -> float | None:
    """The largest |A v - z| of real queries, relative to the largest |z|."""
    if layer.value is None or layer.output is None:
        return None
    output = widen(layer.output)
    real = layer.queries_valid[:, None, :, None]
    difference = ((layer.probs @ layer.values - output) * real).abs().amax()
    largest = (output * real).abs().amax().clamp(min=torch.finfo(output.dtype).tiny)
    return float(difference / largest)


def _plain_logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of a run without hooks that record, in evaluation mode.

    Gradients begin at real numbers and, since token ids have none, at the embeddings. With nothing requiring grad,
    nn.MultiheadAttention leaves for a native path with other roundings.
    """

    def begin(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        return out.detach().requires_grad_().clone()  # which a model may write into

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    with autograd(gradients=True), hooks([module.register_forward_hook(begin) for module in embeddings]):
        given = inputs.each(lambda x: x.detach().clone().requires_grad_() if x.is_floating_point() else x)
        return read_output(model(*given.args, **given.kwargs)).logits.detach()


PARTS = ("attending", "output", "attention_norm", "ffn_norm", "ffn_input", "ffn_output")


@dataclass(frozen=True)
class ModelStructure:
    """The structure of a model for inputs of one form.

    Args:
        family: the family of the model in the table; None where only the model itself was asked.
        calls: the attention calls in order of execution.
        blocks: the blocks in order of execution, with the names of their parts.
        origin: which token comes from which part of the input; words where that is not known.
        refusal: why attention cannot be read token by token; None if it can.
        assumed: what was not measured.
        agrees: whether the family's blocks are those that were found; None without a family.
    """

    model: str
    family: str | None
    calls: tuple[CallSite, ...]
    blocks: tuple[BlockSite, ...]
    origin: Origin | str
    refusal: str | None
    assumed: tuple[str, ...]
    agrees: bool | None

    def __str__(self) -> str:
        """The structure as lines of text."""
        kinds = Counter(call.kind for call in self.calls)
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        lines = [f"{self.model}: {len(self.blocks)} blocks, attention calls: {listed}"]
        if self.family is not None:
            agreement = "agrees with what was found" if self.agrees else "names other blocks than were found"
            lines.append(f"family {self.family}: {agreement}")
        lines += [_block_line(block, self.calls) for block in self.blocks]
        tokens = self.origin
        if isinstance(tokens, Origin):
            grid = f" on a grid of {tokens.grid[0]} x {tokens.grid[1]}" if tokens.grid else ""
            tokens = f"{tokens.tokens}, of which {len(tokens.index)} come from the input{grid}"
        rows = f"refused: {self.refusal}" if self.refusal else "every attention row belongs to the token of its place"
        return "\n".join([*lines, f"tokens: {tokens}", rows, *(f"assumed: {what}" for what in self.assumed)])

    def _repr_html_(self) -> str:
        """The structure for notebooks: a row for each block."""
        from vitrail.plots.page import render

        first, *rest = str(self).splitlines()
        about = [line for line in rest if not line.startswith("  ")]
        blocks = [(_block_name(one), _calls_line(one, self.calls), _parts(one)) for one in self.blocks]
        return str(render("tools/structure.html", first=first, about=about, blocks=blocks))


def structure(model: object, inputs: Tensor | Mapping[str, Any]) -> ModelStructure:
    """Return the structure of a model on these inputs, both as for `vitrail.explain`; nothing is looked up."""
    read = read_inputs(inputs)
    with shadow(model) as own:
        found, known = discover(own, read), known_anatomy(own)
        names = {id(module): name for name, module in own.named_modules()}
        try:
            body = find_body(own, None, read)
            measured = structure_of(own, read, body)
        except VitrailError as error:
            body, measured = None, Structure(str(error), str(error))
        named = [] if body is None else [names.get(id(block.module)) for block in body.blocks]
        agrees = None if known is None or body is None else named == [site.name for site in found.blocks]
    return ModelStructure(
        model=found.model,
        family=None if known is None else known.name,
        calls=found.calls,
        blocks=found.blocks,
        origin=measured.origin,
        refusal=measured.refusal,
        assumed=measured.assumed,
        agrees=agrees,
    )


def _block_line(block: BlockSite, calls: tuple[CallSite, ...]) -> str:
    parts = ", ".join(f"{name}={part}" for name, part in _parts(block).items())
    return f"  {_block_name(block)}: {_calls_line(block, calls)}; {parts or 'no parts named'}"


def _block_name(block: BlockSite) -> str:
    """The name of a block, with its turn where it runs several times."""
    return f"{block.name} (run {block.turn + 1})" if block.turn else block.name


def _calls_line(block: BlockSite, calls: tuple[CallSite, ...]) -> str:
    """The attention calls of a block: what attends to what."""
    own = [calls[index] for index in block.calls]
    return ", ".join(f"{c.kind} {c.queries} x {c.keys}{', causal' if c.causal else ''}" for c in own)


def _parts(block: BlockSite) -> dict[str, str]:
    """The parts of a block that are known, by what they are."""
    return {name: part for name in PARTS if (part := getattr(block.parts, name)) is not None}
