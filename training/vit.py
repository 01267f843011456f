"""The two ViTs of the distillation as plain Hugging Face models, and their tokens layer by layer."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

# timm's name of a part -> the name in a Hugging Face checkpoint.
RENAMED = {
    "patch_embed.proj.": "vit.embeddings.patch_embeddings.projection.",
    "blocks.": "vit.encoder.layer.",
    ".norm1.": ".layernorm_before.",
    ".norm2.": ".layernorm_after.",
    ".attn.proj.": ".attention.output.dense.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
}
WHOLE = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "norm.weight": "vit.layernorm.weight",
    "norm.bias": "vit.layernorm.bias",
    "head.weight": "classifier.weight",
    "head.bias": "classifier.bias",
}


def from_timm(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a timm ViT under the names of a Hugging Face checkpoint."""
    renamed = {}
    for name, weight in weights.items():
        target = WHOLE.get(name, name)
        for old, new in RENAMED.items() if target == name else ():
            target = target.replace(old, new)
        if ".attn.qkv." in target:
            for part, piece in zip(("query", "key", "value"), weight.chunk(3), strict=True):
                renamed[target.replace(".attn.qkv.", f".attention.attention.{part}.")] = piece
        else:
            renamed[target] = weight
    return renamed


def load_teacher(path: Path, *, grid: int) -> ViTForImageClassification:
    """A timm ViT with 16-pixel patches, its position embeddings resized to a square grid of patches."""
    weights = {name: w.float() for name, w in from_timm(load_file(path)).items()}
    positions = weights["vit.embeddings.position_embeddings"]
    width, side = positions.shape[-1], round((positions.shape[1] - 1) ** 0.5)
    square = positions[:, 1:].reshape(1, side, side, width).permute(0, 3, 1, 2)
    square = F.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False, antialias=True)
    patches = square.permute(0, 2, 3, 1).reshape(1, grid * grid, width)
    weights["vit.embeddings.position_embeddings"] = torch.cat([positions[:, :1], patches], dim=1)
    config = ViTConfig(
        image_size=16 * grid,
        hidden_size=width,
        num_hidden_layers=1 + max(int(n.split(".")[3]) for n in weights if ".encoder.layer." in n),
        num_attention_heads=width // 64,
        intermediate_size=weights["vit.encoder.layer.0.intermediate.dense.weight"].shape[0],
        layer_norm_eps=1e-6,
        num_labels=len(weights["classifier.bias"]),
    )
    model, info = ViTForImageClassification.from_pretrained(
        None, config=config, state_dict=weights, output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ValueError(f"{path} is no timm ViT: missing {info['missing_keys']}, unknown {info['unexpected_keys']}")
    return model.eval().requires_grad_(requires_grad=False)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a Hugging Face ViT, wherever its version keeps them."""
    return [module for module in model.modules() if type(module).__name__ == "ViTLayer"]


def tokens_at(model: nn.Module, pixels: Tensor, *, middle: int) -> tuple[Tensor, Tensor]:
    """The tokens after `middle` blocks, and those after the last block, neither normalised."""
    x = model.vit.embeddings(pixels)
    kept = x
    for number, block in enumerate(blocks(model), start=1):
        x = block(x)
        x = x[0] if isinstance(x, tuple) else x
        kept = x if number == middle else kept
    return kept, x
