"""Families of models: which module is which part, in Hugging Face, timm and torchvision.

Hugging Face families are found by `config.model_type`, with paths that start at the base model; those of timm and
torchvision by class name, so neither needs to be installed. An entry holds what a pass cannot show: what gives tokens
their positions, so that some can be left out (`tis`); what a head reads where a class token and patches share the
answer (DINOv2); how pictures and texts are compared (CLIP). Models of text need no entry: everything is found in a
pass, except which tokens are special (`MARKED`).
"""

from dataclasses import replace

from torch import Tensor, nn

from vitrail.models.anatomy.parts import ZOO, Anatomy, find, from_library

_VISION = Anatomy(
    blocks="layers|encoder.layer",
    output="attention.o_proj|attention.output.dense",
    value_bias="attention.v_proj.bias|attention.attention.value.bias",
    attention_norm="layernorm_before",
    ffn_norm="layernorm_after",
    ffn_input="mlp|intermediate",
    ffn_output="mlp|output.dense",
    positions="embeddings.position_embeddings",
    prefix=1,
    readout="cls",
)
_DINO = replace(
    _VISION,
    attention_norm="norm1",
    ffn_norm="norm2",
    ffn_input="mlp",
    ffn_output="mlp",
    readout="cls_mean",
)
_CLIP = Anatomy(
    blocks="vision_model.encoder.layers",
    output="self_attn.out_proj",
    value_bias="self_attn.v_proj.bias",
    attention_norm="layer_norm1",
    ffn_norm="layer_norm2",
    ffn_input="mlp",
    ffn_output="mlp",
    positions="embeddings.position_embedding|vision_model.embeddings.position_embedding",
    prefix=1,
    readout="cls",
    temperature="logit_scale",
)
FAMILIES: dict[str, Anatomy] = {
    "clip": _CLIP,
    "clip_vision_model": replace(_CLIP, blocks="encoder.layers|vision_model.encoder.layers", temperature=None),
    "vit": _VISION,
    "deit": replace(_VISION, prefix=2),
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
    "beit": replace(
        _VISION,
        attention_scale="lambda_1",
        ffn_scale="lambda_2",
        relative="shared_position_bias|relative_position_bias",
    ),
}

MARKED = frozenset({"bert", "roberta", "xlm-roberta", "electra", "mpnet", "distilbert", "modernbert"})
"""Families whose texts begin with a mark and no word, also where a head reads other tokens than the first."""
OWN_HEADS = ("ForImageClassification",)
"""Endings of class names whose readout is the family's own."""
HEADS: dict[str, str] = {
    "ForImageClassificationWithTeacher": "first_two",
    "CLIPModel": "cls",
    "CLIPForImageClassification": "mean",
}
"""Endings of class names with a readout of theirs."""


def huggingface_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of the first Hugging Face base model inside the model."""
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        family = FAMILIES.get(getattr(config, "model_type", ""))
        if config is None or family is None or find(module, family.blocks) is None:
            continue
        head, readout = _head(model, path, family)
        return replace(
            family,
            root=path,
            prefix=family.prefix + getattr(config, "num_register_tokens", 0),
            readout=readout,
            head=head,
            name=f"Hugging Face {config.model_type}",
        )
    return None


def begins_with_mark(model: nn.Module) -> bool:
    """Whether the texts of a model are known to begin with a mark."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return any(getattr(config, "model_type", "") in MARKED for config in configs)


def answers_with_span(model: nn.Module) -> bool:
    """Whether a tuple that a model returns begins with the logits of where an answer starts and where it ends."""
    return type(model).__name__.endswith("ForQuestionAnswering") and hasattr(model, "qa_outputs")


def _head(model: nn.Module, path: str, family: Anatomy) -> tuple[str, str | int]:
    """The outermost Hugging Face model around the base, and what it reads; a head of another kind is measured."""
    names = path.split(".") if path else []
    for count in range(len(names) + 1):
        here = ".".join(names[:count])
        module = model.get_submodule(here)
        if hasattr(module, "config") and any(from_library(module, package) for package in ("transformers", ZOO)):
            return here, _readout(module, family)
    return "", "auto"


def _readout(head: nn.Module, family: Anatomy) -> str | int:
    name, config = type(head).__name__, head.config
    for ending, readout in HEADS.items():
        if name.endswith(ending):
            return readout
    if not name.endswith(OWN_HEADS):
        return "auto"
    if getattr(config, "model_type", "") == "beit" and getattr(config, "use_mean_pooling", False):
        return "mean"
    return family.readout


TIMM = Anatomy(
    blocks="blocks",
    output="attn.proj",
    value_bias="attn.v_bias|attn.v_proj.bias|attn.qkv.bias",
    attention_norm="norm1",
    attention_scale="gamma_1",
    ffn_norm="norm2",
    ffn_input="mlp",
    ffn_output="mlp",
    ffn_scale="gamma_2",
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


TEXT = replace(
    _CLIP,
    blocks="text_model.encoder.layers",
    positions=None,
    readout="auto",
    root="clip",
    name="the text tower of CLIP",
)
"""The readout is measured: the end token, wherever each text has it."""


class TextTower(nn.Module):
    """A Hugging Face `CLIPModel` whose inputs are texts, each compared with the same pictures: a class is a picture."""

    def __init__(self, clip: nn.Module, pixel_values: Tensor) -> None:
        """Take a model and the pictures `[n, 3, h, w]` its texts are compared with."""
        super().__init__()
        self.clip = clip
        self.register_buffer("pictures", pixel_values)
        self.train(clip.training)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One logit per text and picture."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.clip(**given, pixel_values=self.pictures).logits_per_text


def text_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of a text tower."""
    return TEXT if isinstance(model, TextTower) else None
