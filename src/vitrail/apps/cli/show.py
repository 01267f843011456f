"""Results in the terminal: coloured tokens, tables of patches and classes."""

import torch
from rich.table import Table
from rich.text import Text

from vitrail import Attribution
from vitrail.apps.cli.reporting import out
from vitrail.apps.cli.results import Row
from vitrail.capture.outputs import read_output
from vitrail.models.loading import Loaded, Sample

CLASSES = 5
PATCHES = 5


def show_answer(loaded: Loaded, sample: Sample) -> None:
    """What the model said: its first five classes or next tokens, or the answer to a question."""
    inputs = sample.inputs
    with torch.no_grad():
        output = read_output(loaded.model(inputs) if isinstance(inputs, torch.Tensor) else _call(loaded, inputs))
    logits = output.logits[0].float()
    if output.span:
        out().print(Text.assemble(("answer ", "bold"), _span(loaded, inputs, logits)))
        return
    probabilities = (logits[-1] if logits.ndim == 2 else logits).softmax(dim=0)
    table = Table("class", "index", "probability", title="next token" if loaded.task == "causal" else "prediction")
    best = probabilities.topk(min(CLASSES, probabilities.shape[0]))
    for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        table.add_row(Text(loaded.class_name(index)), str(index), f"{value:.3f}")
    out().print(table)


def _call(loaded: Loaded, inputs) -> object:  # noqa: ANN001
    return loaded.model(**{name: x for name, x in inputs.items() if name != "special_tokens_mask"})


def _span(loaded: Loaded, inputs, logits: torch.Tensor) -> str:  # noqa: ANN001
    start, end = (int(i) for i in logits.argmax(dim=0))
    words = loaded.tokenizer.decode(inputs["input_ids"][0, start : end + 1])
    return words if start <= end else "none: the end it predicts lies before the start"


def show_rows(rows: list[Row], *, patches: bool) -> None:
    """Every sentence with its tokens coloured; for images the strongest patches, if they are asked for."""
    for row in rows:
        for attribution in row.attributions:
            if attribution.kind == "text":
                _sentence(row, attribution)
        if patches and row.attributions[0].kind == "image":
            out().print(Text.assemble("strongest patches for ", (row.title, "bold"), " (row, column; score)"))
            out().print(_patch_table(row))


def _sentence(row: Row, attribution: Attribution) -> None:
    from vitrail.plots import terminal

    out().print(Text.assemble((attribution.label, "bold"), f" · {row.title}"))
    out().print(terminal(attribution))


def _patch_table(row: Row) -> Table:
    """The strongest patches of every method, as row and column from the top left."""
    table = Table("method", *(f"{place}." for place in range(1, PATCHES + 1)))
    for attribution in row.attributions:
        table.add_row(Text(attribution.label), *_strongest(attribution))
    return table


def _strongest(attribution: Attribution) -> list[str]:
    assert attribution.grid is not None
    scores = attribution.scores[0]
    order = scores.abs().argsort(descending=True)[:PATCHES].tolist()
    return [f"{i // attribution.grid[1]}, {i % attribution.grid[1]}\n{scores[i].item():.2g}" for i in order]
