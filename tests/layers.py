"""Random layers for tests of equations: no model, all sizes different, float64."""

from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from vitrail.capture.recording.events import Events, events_of
from vitrail.capture.recording.layer import Layer, Stream
from vitrail.relevance import LayerReader, Walk
from vitrail.relevance.walk import walk_events

B, H, T, D, M = 2, 3, 5, 4, 7


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def layer(index=0, depth=1, *, valid=None, readout=None, prefix=1, kind="image", causal=False, heads=H, **more):
    valid = torch.ones(B, T, dtype=torch.bool) if valid is None else valid
    if readout is None:
        readout = torch.zeros(B, T, dtype=torch.float64)
        readout[:, 0] = 1
    stream = Stream(
        entering=random(B, T, M), entering_grad=random(B, T, M), leaving=random(B, T, M), leaving_grad=random(B, T, M),
        attention_normed=random(B, T, M), ffn_entering=random(B, T, M), ffn_normed=random(B, T, M),
        ffn_added=random(B, T, M),
    )  # fmt: skip
    one = Layer(
        index=index, depth=depth, valid=valid, readout=readout, prefix=prefix, kind=kind,
        query=random(B, heads, T, D), key=random(B, heads, T, D), value=random(B, heads, T, D),
        output_grad=random(B, heads, T, D), mask=None if causal else valid[:, None, None, :], causal=causal,
        scale=0.5, output_weight=random(M, heads * D),
        value_bias=random(3 * heads * D), stream=stream, **more,
    )  # fmt: skip
    return with_query_gradient(one)


def with_query_gradient(one):
    """The layer with the gradient of its query that belongs to the gradient of its output."""
    query = one.query.clone().requires_grad_()
    mask = None if one.causal else one.mask
    output = sdpa(query, one.keys, one.values, mask, is_causal=one.causal, scale=one.scale)
    (gradient,) = torch.autograd.grad((output * one.output_grad).sum(), query)
    return replace(one, query_grad=gradient)


def stack(depth=3, **options):
    """Layers first to last."""
    return [layer(index, depth, **options) for index in range(depth)]


def run(method: Walk | LayerReader, layers):
    (made,) = walk_events([method], Events(events_of(reversed(layers))))
    return made.result
