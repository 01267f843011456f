"""timm's and torchvision's Vision Transformers, found by class name, so neither needs to be installed."""

from dataclasses import replace

from torch import nn

from vitrail.anatomy.parts import Anatomy, find

TIMM = Anatomy(
    blocks="blocks",
    output="attn.proj",
    value_bias="attn.v_bias|attn.v_proj.bias|attn.qkv.bias",
    attention_norm="norm1",
    attention_scale="ls1.gamma|gamma_1",
    ffn_norm="norm2",
    ffn_input="mlp",
    ffn_output="ls2|mlp",
    ffn_scale="gamma_2",
)
TORCHVISION = Anatomy(
    blocks="encoder.layers",
    output="self_attention.out_proj",
    value_bias="self_attention.in_proj_bias",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    ffn_input="mlp",
    ffn_output="mlp",
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
        kinds = {type(b).__name__ for b in blocks.children()} if isinstance(blocks, nn.Module) else set()
        if not kinds or kinds - TIMM_BLOCKS:  # parallel, post-norm and other blocks have other parts
            return None
        distilled = "VisionTransformerDistilled" in _classes(module, "timm")
        pool = str(getattr(module, "global_pool", ""))
        return replace(
            TIMM,
            root=path,
            prefix=int(getattr(module, "num_prefix_tokens", 0)),
            readout="first_two" if distilled else TIMM_POOLS.get(pool, "auto"),
            pool=".".join(filter(None, [path, "attn_pool"])) if pool == "map" else None,
            name=f"timm {type(module).__name__}",
        )
    return None


def torchvision_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of the first torchvision Vision Transformer inside the model."""
    for path, module in model.named_modules():
        if "VisionTransformer" in _classes(module, "torchvision"):
            return replace(TORCHVISION, root=path)
    return None
