"""Information flow routes, and FlashTrace, which follows those of an answer over several hops.

Ferrando and Voita, "Information Flow Routes: Automatically Interpreting Language Models at Scale", EMNLP 2024,
arXiv:2403.00824: how much each token contributes, head by head, to the stream after attention. Paper -> code: x -> the
stream that enters a block, m -> the stream after its attention, S -> the rows of the span, w -> their weights, T ->
`contribution`, prox -> `proximity`. Feed-forward layers do not enter.

Pan et al., "Towards Long-Horizon Interpretability: Efficient and Faithful Multi-Token Attribution for Reasoning LLMs",
ICML 2026, arXiv:2602.01914, released as the package flashtrace 0.1.1: IFR on a span of tokens, passed on through tokens
generated before the answer. Paper -> code: one pass of IFR over a span -> `flow`, the weights of hop k + 1 -> the
scores of hop k on the span. Tokens that end a phrase (`stop_tokens`) are not followed and get no score.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer, widen
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.errors import MethodError, OptionError, TargetError
from vitrail.methods.options import check_choice, check_count
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import last_position
from vitrail.relevance import Result, attention, pull
from vitrail.relevance.runner import RerunMethod, Runner

NEEDS = frozenset({"entering", "ffn_entering", "output_weight"})
NO_GRAPH = PassOptions(graph=False)
ELEMENTS = 2**25
"""How many numbers of the contributions are held at a time."""
MOST_HOPS = 1000
MOST_ENTRIES = 2**28
"""Up to how many entries the rows of an answer are computed as a map."""
LOOKED_AT = 256
"""In about how many real tokens of a sample the output of attention is checked."""
Weights = Float[Tensor, "b t"]


def proximity(part: Float[Tensor, "... d"], whole: Float[Tensor, "... d"]) -> Float[Tensor, "..."]:
    """`max(|whole|_1 - |part - whole|_1, 0)`: how much of the whole a part makes up."""
    return (whole.abs().sum(dim=-1) - torch.linalg.vector_norm(part - whole, ord=1, dim=-1)).clamp(min=0)


def _contributions(
    layer: Layer, weights: Weights, dtype: torch.dtype
) -> Iterator[tuple[slice, Float[Tensor, "b h k d"]]]:
    """`T_{j,h} = (sum_i w_i A_h[i, j]) V_j^h W_O^h` for some tokens j at a time."""
    rows = weights if layer.output_rows is None else weights * layer.output_rows.to(weights.dtype)
    read = _read(layer, rows).to(dtype)
    output = widen(layer.get("output_weight")).to(dtype)
    if layer.attention_scale is not None:
        output = layer.attention_scale.to(dtype)[:, None] * output
    values = layer.get("value")
    heads, groups, width = read.shape[1], values.shape[1], values.shape[3]
    slices = output.view(output.shape[0], heads, width).permute(1, 2, 0)  # [h, e, d]
    step = max(1, ELEMENTS // (read.shape[0] * heads * output.shape[0]))
    for start in range(0, read.shape[2], step):
        cut = slice(start, start + step)
        some = values[:, :, cut].to(dtype).repeat_interleave(heads // groups, dim=1)
        yield cut, (some * read[:, :, cut, None]) @ slices


def _read(layer: Layer, rows: Weights) -> Float[Tensor, "b h k"]:
    """`sum_i w_i A_h[i, j]`: of a short answer, from the map of its rows alone."""
    places = (rows != 0).any(dim=0).nonzero()[:, 0]
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 1)
    keys, heads = layer.valid.numel(), layer.get("output").shape[1]
    if layer.weights is not None or (last - first) * keys * heads > MOST_ENTRIES:
        return pull(layer, rows, attention)
    return pull(layer.rows(first, last), rows[:, first:last], attention)


def check_added(layer: Layer) -> None:
    """Refuse a layer whose stream changes by more than the output of attention and a bias that all tokens share.

    Only some of the real tokens are checked.
    """
    real = layer.valid.nonzero()
    rows, tokens = real[:: max(1, len(real) // (LOOKED_AT * len(layer.valid)))].unbind(dim=1)
    entering, after, output = (
        widen(x[rows, tokens])
        for x in (layer.stream.entering, layer.stream.ffn_entering, layer.get("output").transpose(1, 2))
        if x is not None
    )
    given = output.flatten(1) @ widen(layer.get("output_weight")).to(output.dtype).T
    given = given if layer.attention_scale is None else given * layer.attention_scale.to(given.dtype)
    given = given if layer.output_rows is None else given * layer.output_rows[rows, tokens].to(given.dtype)[:, None]
    rest = after - entering - given
    size = float(given.abs().amax())
    slack = 1e-3 * size
    if layer.get("output").dtype.itemsize < 4:  # half precision rounds the stream, which may be larger than the change
        slack = 0.05 * max(size, float(entering.abs().amax()))
    if float((rest - rest[:1]).abs().amax()) > slack:
        raise MethodError(
            f"ifr and flashtrace compare the stream after attention with what attention adds, but in layer "
            f"{layer.index} the feed-forward part reads another stream: attention and feed-forward stand side by side, "
            "or attention is changed before it is added. Take gae or attn_lrp."
        )


def layer_share(layer: Layer, weights: Weights) -> Weights:
    """The share of each token in what attention leaves at the span; what the skip connection carries is the rest."""
    entering, after = layer.state("entering"), layer.state("ffn_entering")
    check_added(layer)
    whole, own = ((weights.to(x.dtype)[:, None] @ x).squeeze(1) for x in (after, entering))
    found = torch.cat(
        [proximity(part, whole[:, None, None]).sum(dim=1) for _, part in _contributions(layer, weights, whole.dtype)],
        dim=1,
    )
    kept = proximity(own, whole)
    return found / (found.sum(dim=1) + kept + 1e-12)[:, None]


def flow(layers: list[Layer], weights: Weights) -> Weights:
    """The sum over layers of the tokens' shares."""
    total = torch.zeros_like(weights)
    for layer in layers:
        total = total + layer_share(layer, weights).to(total.dtype)
    return total * layers[0].valid


def _predicting(runner: Runner) -> Weights:
    """The rows at which the target is read."""
    return runner.layers(frozenset())[0].readout


def answer_rows(runner: Runner) -> Weights:
    """The rows of the continuation's own tokens."""
    if runner.part.rows is None:
        raise TargetError(
            "rows='tokens' reads the rows of an answer's own tokens: name them with targets.continuation(start, stop)."
        )
    # A row predicts the next column.
    return runner.part.rows.roll(1, dims=1).to(_predicting(runner).dtype)


ROWS: dict[str, Callable[[Runner], Weights]] = {"predicting": _predicting, "tokens": answer_rows}
"""Whose information is followed: that of the rows that predict the answer, or of the answer's own tokens."""


def _reached(runner: Runner, followed: Bool[Tensor, "b t"]) -> Bool[Tensor, "b t"]:
    """Return the tokens that can reach the rows that are followed."""
    found = runner.run.reached_from(followed)
    return torch.ones_like(followed) if found is None else found


def check_streams(name: str) -> Callable[[nn.Module, Body, Inputs], None]:
    """A check that a model's blocks add attention to the stream before anything else is done to it."""

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if not body.blocks or body.pool is not None or body.blocks[0].attention_norm is None:
            raise MethodError(
                f"{name} compares what attention adds with the stream it is added to, in blocks that normalise before "
                f"their attention, but those of {type(model).__name__} do not, or are not known. Use gae or rollout."
            )

    return check


def build(*, rows: str = "predicting") -> RerunMethod:
    """The share of each token in what attention adds at the answer's rows, summed over layers.

    Args:
        rows: follow the rows that are `predicting` the answer, or those of its own `tokens` (the released package).
    """
    choose = check_choice("rows", rows, ROWS)

    def explain(runner: Runner) -> Result:
        followed = choose(runner)
        reached = None if rows == "predicting" else _reached(runner, followed > 0)
        return Result(flow(runner.layers(NEEDS), followed), reached=reached)

    return RerunMethod(explain, NO_GRAPH, needs=NEEDS, check=check_streams("ifr"))


def trace(layers: list[Layer], span: Bool[Tensor, "b t"], passed: Bool[Tensor, "b t"], hops: int) -> list[Weights]:
    """The scores that each hop adds: `s_0`, `ratio_0 s_1`, `ratio_0 ratio_1 s_2`, ...

    A ratio is the share of a hop's scores that falls on the span, whose tokens the next hop follows.

    Args:
        passed: the tokens that take part; others are not followed and get no score.
    """
    weights, found = (span & passed).to(layers[0].readout.dtype), []
    ratio, tiny = torch.ones_like(weights[:, :1]), torch.finfo(weights.dtype).tiny
    for _ in range(hops + 1):
        scores = flow(layers, weights / weights.sum(dim=1, keepdim=True).clamp(min=tiny)) * passed
        found.append(ratio * scores)
        weights = scores * span
        ratio = ratio * weights.sum(dim=1, keepdim=True) / scores.sum(dim=1, keepdim=True).clamp(min=tiny)
    return found


def _span(runner: Runner, rows: str, reasoning: Sequence[int] | None) -> Bool[Tensor, "b t"]:
    """The rows that are followed: those of the answer, or from where its reasoning begins to where the answer ends."""
    span = check_choice("rows", rows, ROWS)(runner) > 0
    if reasoning is None:
        return span
    if len(reasoning) != 2 or not all(isinstance(x, int) for x in reasoning):
        raise OptionError(
            f"reasoning={reasoning!r}, but it must be a pair of columns (start, stop); stop is the one after the last."
        )
    target = runner.part.target
    if target.name != "continuation":
        raise TargetError("reasoning=(start, stop) needs an answer after it: use targets.continuation.")
    start, stop = reasoning
    if not 0 < start < stop <= span.shape[1]:
        raise OptionError(f"reasoning={reasoning!r} is no span of the {span.shape[1]} columns of the input.")
    first = start if rows == "tokens" else start - 1
    places = torch.arange(span.shape[1], device=span.device)
    return (places >= first) & (places <= last_position(span)[:, None])


def build_flashtrace(
    *,
    hops: int = 1,
    stop_tokens: list | tuple | None = None,
    reasoning: list | tuple | None = None,
    rows: str = "predicting",
) -> RerunMethod:
    """Information flow routes over several hops, each weighted by the share that falls on what was generated.

    Args:
        hops: how often relevance that falls on the answer is passed on; 0 is `ifr` without stop tokens.
        stop_tokens: ids of tokens that are not followed and get no score, such as commas.
        reasoning: the columns `(start, stop)` of what was generated before the answer, to follow it too.
        rows: follow the rows that are `predicting` the answer, or those of its own `tokens` (the released package).
    """
    if hops < 0:
        raise OptionError(f"hops={hops}, but it is a number of hops, at least 0.")
    check_count("hops", hops, least=0, most=MOST_HOPS)
    check_choice("rows", rows, ROWS)

    def explain(runner: Runner) -> Result:
        layers, span = runner.layers(NEEDS), _span(runner, rows, reasoning)
        passed = torch.ones_like(span) & layers[0].valid
        if runner.inputs.ids is not None and stop_tokens:
            stops = torch.tensor(list(stop_tokens), device=runner.inputs.ids.device)
            passed &= ~torch.isin(runner.inputs.ids, stops).to(passed.device)
        found = trace(layers, span, passed, hops)
        names = tuple(f"hop {index}" for index in range(hops + 1))
        reached = None if rows == "predicting" else _reached(runner, span)
        scores = torch.stack(found)
        return Result(scores.sum(dim=0), layers=scores.transpose(0, 1), parts=names, reached=reached)

    return RerunMethod(explain, NO_GRAPH, needs=NEEDS, check=check_streams("flashtrace"))
