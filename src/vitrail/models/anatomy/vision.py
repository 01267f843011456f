"""timm's and torchvision's Vision Transformers, found by class name, so neither needs to be installed."""

from dataclasses import replace

from torch import nn

from vitrail.models.anatomy.parts import Anatomy, find, from_library

TIMM = Anatomy(
    blocks="blocks",
    output="attn.proj",
    value_bias="attn.v_bias|attn.v_proj.bias|attn.qkv.bias",
    attention_norm="norm1",
    attention_scale="ls1.gamma|gamma_1",
    ffn_norm="norm2",
    ffn_input="mlp",
    ffn_output="mlp",
    ffn_scale="ls2.gamma|gamma_2",
    positions="pos_embed",
    relative="rope",
)
TORCHVISION = Anatomy(
    blocks="encoder.layers",
    output="self_attention.out_proj",
    value_bias="self_attention.in_proj_bias",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    ffn_input="mlp",
    ffn_output="mlp",
    positions="encoder.pos_embedding",
    prefix=1,
    readout="cls",
    name="torchvision",
)
TIMM_CLASSES = {"VisionTransformer", "VisionTransformerDistilled", "Eva"}
TIMM_BLOCKS = {"Block", "EvaBlock"}
TIMM_POOLS = {"token": "cls", "avg": "mean", "map": "pool"}


def _classes(module: nn.Module, package: str) -> set[str]:
    return {c.__name__ for c in type(module).__mro__ if c.__module__.split(".")[0] == package}


def timm_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of the first timm Vision Transformer or EVA inside the model."""
    for path, module in model.named_modules():
        if not _classes(module, "timm") & TIMM_CLASSES:
            continue
        blocks = find(module, "blocks")
        if not isinstance(blocks, nn.Module):
            return None
        kinds = {type(block).__name__ for block in blocks.children()}
        if not kinds or kinds - TIMM_BLOCKS:  # parallel, post-norm and other blocks have other parts
            return None
        # A norm between the heads and the projection makes the projection no map of single heads.
        plain = all(isinstance(find(block, "attn.norm"), nn.Identity | None) for block in blocks.children())
        pool = str(getattr(module, "global_pool", ""))
        return replace(
            TIMM,
            root=path,
            output=TIMM.output if plain else None,
            prefix=int(getattr(module, "num_prefix_tokens", 0)),
            readout=_timm_readout(module, pool),
            head=path,
            pool=".".join(filter(None, [path, "attn_pool"])) if pool == "map" else None,
            name=f"timm {type(module).__name__}",
        )
    return None


def _timm_readout(module: nn.Module, pool: str) -> str:
    if not from_library(module, "timm"):
        return "auto"
    return "first_two" if type(module).__name__ == "VisionTransformerDistilled" else TIMM_POOLS.get(pool, "auto")


def torchvision_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of the first torchvision Vision Transformer inside the model."""
    for path, module in model.named_modules():
        if "VisionTransformer" in _classes(module, "torchvision"):
            readout = TORCHVISION.readout if from_library(module, "torchvision") else "auto"
            return replace(TORCHVISION, root=path, readout=readout, head=path)
    return None
