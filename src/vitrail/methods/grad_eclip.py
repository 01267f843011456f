"""Grad-ECLIP: which parts of a picture, or of a text, contribute to the similarity of the two.

Zhao et al., "Gradient-based Visual Explanation for Transformer-based CLIP", ICML 2024, arXiv:2502.18816. The authors
recompute the last block with one head of full width, so what is explained is not the model's own pass. Paper -> code:
g -> the gradient at the attention's output before its projection, in the readout's row; v, q, k -> values, queries and
keys over all heads; lambda -> `looseness`. One head of full width d is the same as giving every head the map
`softmax(sum_h S_h / sqrt(heads))`, because `S_h = q_h k_h / sqrt(d / heads)`; and `g v_j` is then the sum over heads of
the gradient at that map, because the map's gradient in one head is `g_h v_jh`.

`grad_eclip_heads` is for models as they are: many heads, any class logit. It is our extension, not the authors'. The
model's own pass is explained: every head has its own gradient g_h, its own values v_h and its own similarity of queries
and keys, without the output projection, which mixes heads; the heads are added up.
"""

import math
from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.capture.recording.layer import Layer, widen
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.capture.seams.intercept import Override
from vitrail.capture.structure.projections import matrix
from vitrail.errors import MethodError, MissingTensorError, OptionError
from vitrail.methods.options import check_count, last_layer, min_max_over
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Result, gradient, pull
from vitrail.relevance.runner import RerunMethod, Runner

Row = Float[Tensor, "b t"]
Project = Callable[[Float[Tensor, "b t c"]], Float[Tensor, "b t m"]]


def one_head(scores: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
    """The scores of one head of full width, `q k / sqrt(d)`, the same in every head."""
    return (scores.sum(dim=1, keepdim=True) / math.sqrt(scores.shape[1])).expand_as(scores)


def evidence(layer: Layer) -> Row:
    """`sum_d g_d v_jd`: how much more of token j's value would raise the scalar."""
    return pull(layer, layer.readout, gradient).sum(dim=1)


def queries(layer: Layer) -> Float[Tensor, "b h q d"]:
    """The queries as the model projected them, whether it scales queries or scores."""
    query = widen(layer.get("query"))
    if not layer.plain:
        raise MissingTensorError(
            f"this method reads how attention layer {layer.index} scales its scores, but they are more than a scaled "
            "product of queries and keys. grad_eclip(similarity=False) does not read it."
        )
    return query * (layer.scale * math.sqrt(query.shape[-1]))


def seen(layer: Layer) -> Bool[Tensor, "b t"]:
    """The tokens that are compared: patches, or all real words, as far as the readout may see them."""
    real = layer.content if layer.kind == "image" else layer.valid
    if layer.visible is None:
        return real
    rows = layer.visible.any(dim=1).expand(real.shape[0], layer.readout.shape[1], -1)
    return real & (rows & (layer.readout > 0)[:, :, None]).any(dim=1)


def looseness(layer: Layer, project: Project) -> Row:
    """`lambda_j = minmax_j cos(q'_cls, k'_j)`, where q' and k' went through the output projection as values do."""
    query, key = (project(rearrange(x, "b h t d -> b t (h d)")) for x in (queries(layer), layer.keys))
    row = (layer.readout[:, None, :] @ query).squeeze(1)
    return min_max_over(F.cosine_similarity(row[:, None], key, dim=2), seen(layer))


def picture(total: Row, last: Layer) -> Row:
    """`m_j = [.]^+`."""
    return total.clamp(min=0)


def words(total: Row, last: Layer) -> Row:
    """`m_j = [.]^+` of the words between the start and the end token, divided by their sum."""
    before_end = torch.arange(total.shape[1], device=total.device) < last.readout.argmax(dim=1)[:, None]
    found = (total.clamp(min=0) * (last.content & before_end)).to(total.dtype)
    whole = found.sum(dim=1, keepdim=True)
    return found / torch.where(whole == 0, torch.ones_like(whole), whole)


FORMS: dict[str, Callable[[Row, Layer], Row]] = {"image": picture, "text": words}


def build(*, similarity: bool = True, layers: int = 1) -> RerunMethod:
    """The gradient of the image-text similarity times values, weighted by likeness to the readout, in one wide head.

    Args:
        similarity: weigh each token by the similarity of its key to the readout's query (the paper's lambda).
        layers: how many of the last blocks get one head and are added up; the authors take several for texts only.
    """
    check_count("layers", layers)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if body.temperature is None:
            raise MethodError(
                "grad_eclip explains CLIP's image-text similarity, but "
                f"{type(model).__name__} gives no such similarity; for a classifier use grad_eclip_heads."
            )
        if layers > len(body.blocks):
            raise OptionError(f"layers={layers}, but the model has {len(body.blocks)} blocks.")

    def explain(runner: Runner) -> Result:
        blocks, batch = runner.body.blocks, runner.inputs.batch

        def override(block: int, scores: Tensor) -> Tensor:
            if block < len(blocks) - layers:
                return scores
            return one_head(scores.reshape(batch, -1, *scores.shape[-2:])).reshape(scores.shape)

        pass_options = PassOptions(override=Override(scores=override))
        read = runner.recorded(frozenset({"output_grad"}), pass_options, last_only=layers == 1)[-layers:]
        maps = [evidence(layer) for layer in read]
        if similarity:
            outputs = [projection(block.output) for block in blocks[-layers:]]
            maps = [m * looseness(layer, out) for m, layer, out in zip(maps, read, outputs, strict=True)]
        assert runner.body.temperature is not None
        # The gradient is the logit's, which is the cosine times this factor.
        factor = widen(runner.body.temperature.detach()).exp()
        return Result(FORMS[read[-1].kind](torch.stack(maps).sum(dim=0) / factor, read[-1]))

    return RerunMethod(explain, check=check)


def projection(output: nn.Module | None) -> Project:
    """The output projection with its bias, in the precision of the relevance algebra."""
    assert output is not None

    def project(x: Tensor) -> Tensor:
        weight, bias = matrix(output, x.shape[-1], x)
        return F.linear(x, weight.to(x), None if bias is None else bias.to(x))

    return project


def head_evidence(layer: Layer) -> Float[Tensor, "b h t"]:
    """`sum_d g_hd v_hjd`, head by head: the gradient at the head's map, in the readout's row."""
    return pull(layer, layer.readout, gradient)


def head_looseness(layer: Layer) -> Float[Tensor, "b h t"]:
    """`lambda_hj = minmax_j cos(q_h,readout, k_hj)`."""
    row = layer.readout[:, None, None, :] @ queries(layer)
    chosen = seen(layer)[:, None].expand(-1, row.shape[1], -1)
    return min_max_over(F.cosine_similarity(row, layer.keys, dim=3), chosen)


def build_heads(*, similarity: bool = True) -> LayerReader:
    """Our extension of Grad-ECLIP: gradient times values times query-key similarity, summed over the last heads.

    Args:
        similarity: weigh each token by the similarity of its key to the readout's query, head by head.
    """

    def read(layer: Layer) -> Float[Tensor, "b h t"]:
        heads = head_evidence(layer)
        return heads * head_looseness(layer) if similarity else heads

    def finish(heads: Float[Tensor, "b h t"], first: Layer) -> Result:
        """`m_j = [sum_h .]^+`."""
        return Result(heads.sum(dim=1).clamp(min=0), heads=heads)

    return last_layer(read, finish)
