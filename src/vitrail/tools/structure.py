"""The structure of a model as it was measured: attention calls, blocks, their parts, and where tokens come from."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.capture.discovery import BlockSite, CallSite, Discovery, discover
from vitrail.capture.forward import find_body
from vitrail.capture.measure import Structure, structure_of
from vitrail.capture.origin import Origin
from vitrail.capture.shadow import shadow
from vitrail.errors import VitrailError
from vitrail.models.anatomy import Body, known_anatomy
from vitrail.models.inputs import read_inputs

PARTS = ("attending", "output", "attention_norm", "ffn_norm", "ffn_input", "ffn_output")


@dataclass(frozen=True)
class ModelStructure:
    """What was found in a model for inputs of one form.

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
        return "\n".join(_lines(self))


def structure(model: object, inputs: Tensor | Mapping[str, Any]) -> ModelStructure:
    """What is found in a model when it runs on these inputs; nothing is looked up.

    Args:
        model: as for `vitrail.explain`.
        inputs: as for `vitrail.explain`.
    """
    read = read_inputs(inputs)
    with shadow(model) as own:
        found, known = discover(own, read), known_anatomy(own)
        names = {id(module): name for name, module in own.named_modules()}
        try:
            body = find_body(own, None, read)
            measured = structure_of(own, read, body)
        except VitrailError as error:
            body, measured = None, Structure(str(error), str(error))
        agrees = None if known is None or body is None else _agrees(body, found, names)
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


def _agrees(body: Body, found: Discovery, names: dict[int, str]) -> bool:
    """Whether the blocks that a table names are those that were found."""
    return [names.get(id(block.module)) for block in body.blocks] == [site.name for site in found.blocks]


def _lines(found: ModelStructure) -> list[str]:
    kinds = Counter(call.kind for call in found.calls)
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    lines = [f"{found.model}: {len(found.blocks)} blocks, attention calls: {told}"]
    if found.family is not None:
        agreement = "agrees with what was found" if found.agrees else "names other blocks than were found"
        lines.append(f"family {found.family}: {agreement}")
    lines += [_block_line(block, found.calls) for block in found.blocks]
    if isinstance(found.origin, Origin):
        origin = found.origin
        grid = f" on a grid of {origin.grid[0]} x {origin.grid[1]}" if origin.grid else ""
        lines.append(f"tokens: {origin.tokens}, of which {len(origin.index)} come from the input{grid}")
    else:
        lines.append(f"tokens: {found.origin}")
    lines.append(
        f"refused: {found.refusal}" if found.refusal else "every attention row belongs to the token of its place"
    )
    return [*lines, *(f"assumed: {what}" for what in found.assumed)]


def _block_line(block: BlockSite, calls: tuple[CallSite, ...]) -> str:
    own = [calls[index] for index in block.calls]
    told = ", ".join(f"{c.kind} {c.queries} x {c.keys}{', causal' if c.causal else ''}" for c in own)
    parts = [f"{name}={part}" for name in PARTS if (part := getattr(block.parts, name)) is not None]
    again = f" (run {block.turn + 1})" if block.turn else ""
    return f"  {block.name}{again}: {told}; {', '.join(parts) or 'no parts named'}"
