"""A small timm Vision Transformer whose attention maps are seen by hooks of our own, without Vitrail."""

from contextlib import contextmanager

import torch
from tiny_models import MODELS


def plain_vit():
    """The model with attention written by hand, and two pictures for it."""
    torch.manual_seed(5)
    model = MODELS["timm_vit"].build().double().eval()
    for block in model.blocks:
        block.attn.fused_attn = False
    return model, MODELS["timm_vit"].inputs()


@contextmanager
def watched(model, change=lambda block, attention: attention):
    """The maps, queries and keys of each block that runs; `change` may put another map in its place."""
    seen = {"maps": [], "queries": [], "keys": []}
    handles = []
    for index, block in enumerate(model.blocks):

        def attend(module, args, out, index=index):
            seen["maps"].append(change(index, out))
            return seen["maps"][-1]

        handles.append(block.attn.attn_drop.register_forward_hook(attend))
        handles.append(block.attn.q_norm.register_forward_hook(lambda m, a, out: seen["queries"].append(out)))
        handles.append(block.attn.k_norm.register_forward_hook(lambda m, a, out: seen["keys"].append(out)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
