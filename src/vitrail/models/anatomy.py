"""The parts of a model: data, tables by family, and how a model is looked up in them.

`Anatomy` is a description by dotted paths, made once per family or by the user; `resolve` looks the paths up in one
model and gives a `Body` of modules and tensors. Hugging Face families are found by `config.model_type`, with paths that
start at the base model; those of timm and torchvision by class name, so neither needs to be installed. An entry holds
what a pass cannot show: what gives tokens their positions, so that some can be left out (`tis`); what a head reads
where a class token and patches share the answer (DINOv2); how pictures and texts are compared (CLIP). Models of text
need no entry: everything is found in a pass, except which tokens are special (`MARKED`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor, nn

from vitrail.errors import AnatomyError
from vitrail.models.readouts import MEASURED, READOUTS
from vitrail.models.taking import every_module


@dataclass(frozen=True)
class Anatomy:
    """The paths of the parts of a Transformer.

    Paths are dotted attribute names; `|` separates spellings of which the first that exists is taken.
    All but `blocks`, `positions`, `temperature`, `pool` and `root` are looked up inside each block.

    Args:
        blocks: the list of blocks, inside `root`. Each block's first argument is the residual stream.
        output: the projection applied to the heads' concatenated outputs.
        value_bias: the bias of the value projection. Of a fused query-key-value bias the last part is taken.
        attention_norm: in pre-norm models, the norm whose output the attention reads.
        attention_scale: a vector that multiplies the attention's output (layer scale).
        ffn_norm: in pre-norm models, the norm whose input is the stream that enters the feed-forward part.
        ffn_input: the module whose input is the feed-forward part's input.
        ffn_output: the module whose output is added to the stream, after `ffn_scale` if there is one.
        ffn_scale: a vector that multiplies the feed-forward output (layer scale).
        positions: the embedding that tells each token its place before the first block, inside `root`. Name it only
            where tokens may be left out behind it: where nothing in the blocks counts tokens again.
        relative: what tells attention how tokens lie to each other (rotary tables, relative biases), inside `root` or
            each block. A model that has it cannot do without some of its tokens.
        prefix: how many tokens stand before the patches or words (class, distillation, registers).
        readout: which rows the prediction reads: a name of `vitrail.readout.READOUTS`, `"pool"`,
            `"position"` (the target says which), `"auto"` (the rows of the last block that have a
            gradient), or an index.
        causal: whether a model that answers at every token is asked for the next one.
        span: whether a pair of outputs is the start and the end of an answer.
        temperature: in models that compare pictures with texts, the logarithm of the factor from cosine to logit.
        pool: the attention-pooling module, where the prediction is read by a query of its own.
        head: the module whose answer the readout describes. If the model does not pass that answer on as it is, the
            readout is measured by the gradient instead. Empty for the model itself, which needs no such check.
        root: the module the paths start from; empty for the model itself.
        name: the family, for messages.
    """

    blocks: str = ""
    output: str | None = None
    value_bias: str | None = None
    attention_norm: str | None = None
    attention_scale: str | None = None
    ffn_norm: str | None = None
    ffn_input: str | None = None
    ffn_output: str | None = None
    ffn_scale: str | None = None
    positions: str | None = None
    relative: str | None = None
    prefix: int = 0
    readout: str | int = "auto"
    causal: bool = False
    span: bool = False
    temperature: str | None = None
    pool: str | None = None
    head: str = ""
    root: str = ""
    name: str = "your own"

    def __post_init__(self) -> None:
        """Refuse values of another kind: paths are texts, and modules are not looked up by themselves."""
        for name, kinds in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                shown = " ".join(repr(value).split())
                example = ", such as blocks='encoder.layers'" if str in kinds and name != "readout" else ""
                raise AnatomyError(f"Anatomy({name}={shown:.100}), but {name} is a {wanted}{example}.")
        if not 0 <= self.prefix <= MOST_TOKENS:
            raise AnatomyError(f"Anatomy(prefix=...) is a number of tokens, at least 0 and at most {MOST_TOKENS}.")
        if isinstance(self.readout, int) and abs(self.readout) > MOST_TOKENS:
            raise AnatomyError(f"Anatomy(readout=...) is the position of a token, at most {MOST_TOKENS}.")


MOST_TOKENS = 10**9
"""More tokens than any model has."""
_PATH: tuple[type, ...] = (str, type(None))
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("blocks", "head", "root", "name"), (str,)),
    **dict.fromkeys(("output", "value_bias", "attention_norm", "attention_scale"), _PATH),
    **dict.fromkeys(("ffn_norm", "ffn_input", "ffn_output", "ffn_scale"), _PATH),
    **dict.fromkeys(("positions", "relative", "temperature", "pool"), _PATH),
    **dict.fromkeys(("causal", "span"), (bool,)),
    "prefix": (int,),
    "readout": (str, int),
}
"""The kinds of value that an anatomy holds."""


@dataclass(frozen=True)
class Block:
    """The parts of one block of one model; None where the family has no such part."""

    module: nn.Module
    output: nn.Module | None
    value: nn.Module | None  # the module whose bias is the value projection's
    value_bias: Tensor | None
    attention_norm: nn.Module | None
    attention_scale: Tensor | None
    ffn_norm: nn.Module | None
    ffn_input: nn.Module | None
    ffn_output: nn.Module | None
    ffn_scale: Tensor | None
    batch_first: bool
    attending: nn.Module | None  # the part that makes the block's one attention call, where the structure shows it
    discovered: bool = False  # whether the parts were found in a pass
    value_channels: tuple[int, ...] | range | None = None  # which numbers of what `value` gives are the values


ENCODINGS = ("sentence_embedding", "image_embeds", "text_embeds", "last_hidden_state")
POOLED = ("sentence_embedding", "image_embeds", "text_embeds", "pooler_output", "last_hidden_state")
"""Names of encodings, those first that are meant to be compared: of a model with a pooling attention, what it gives."""


@dataclass(frozen=True)
class Body:
    """An anatomy looked up in one model."""

    anatomy: Anatomy
    blocks: tuple[Block, ...]
    pool: nn.Module | None
    owner: nn.Module
    head: nn.Module | None
    temperature: Tensor | None = None
    loose: str | None = None  # why no module is a block, where that was found
    idle: tuple[nn.Module, ...] = ()  # members of the blocks' list that run without attention, where that was measured
    ran: tuple[tuple[str, int], ...] = ()  # the name and the turn of each block, where the blocks were found in a pass

    @cached_property
    def encodings(self) -> tuple[str, ...]:
        """The fields under which an output without logits holds its encodings."""
        return ENCODINGS if self.pool is None else POOLED


def find(root: object, path: str | None) -> object | None:
    """The first of the `|`-separated dotted paths that exists below `root` and is not None."""
    for spelling in path.split("|") if path else ():
        here: object | None = root
        for name in spelling.split("."):
            here = getattr(here, name, None)
        if here is not None:
            return here
    return None


Kind = TypeVar("Kind", nn.Module, Tensor)


def _part(root: nn.Module, path: str | None, kind: type[Kind]) -> Kind | None:
    """Return the object at a path if it is of this kind, else None."""
    found = find(root, path)
    return found if isinstance(found, kind) else None


def _block(module: nn.Module, anatomy: Anatomy) -> Block:
    """The parts of a block. `value` is the module that has a bias of the name given, whether there is one or not."""
    names = ("output", "attention_norm", "ffn_norm", "ffn_input", "ffn_output")
    modules: dict[str, Any] = {name: _part(module, getattr(anatomy, name), nn.Module) for name in names}
    biases = [spelling for spelling in (anatomy.value_bias or "").split("|") if spelling.endswith(".bias")]
    values = (_part(module, bias.removesuffix(".bias"), nn.Module) for bias in biases)
    return Block(
        module=module,
        **modules,
        value=next((value for value in values if value is not None), None),
        value_bias=_part(module, anatomy.value_bias, Tensor),
        attention_scale=_part(module, anatomy.attention_scale, Tensor),
        ffn_scale=_part(module, anatomy.ffn_scale, Tensor),
        batch_first=all(m.batch_first for m in every_module(module) if isinstance(m, nn.MultiheadAttention)),
        attending=_attending(module, anatomy.output),
    )


def _attending(block: nn.Module, output: str | None) -> nn.Module | None:
    """The child of a library's own block that holds the output projection, unless another child may attend too."""
    if output is None or not any(from_library(block, package) for package in ("transformers", "timm", ZOO)):
        return None
    children = {name: child for name, child in block._modules.items() if child is not None}
    names = [spelling.split(".")[0] for spelling in output.split("|") if find(block, spelling) is not None]
    others = (type(child).__name__.lower() for name, child in children.items() if name not in names[:1])
    return children.get(names[0]) if names and not any("att" in other for other in others) else None


def resolve(anatomy: Anatomy, model: nn.Module) -> Body:
    """The anatomy's parts in this model."""
    if isinstance(anatomy.readout, str) and anatomy.readout not in {*READOUTS, *MEASURED}:
        known = ", ".join([*READOUTS, *MEASURED])
        raise AnatomyError(f"unknown readout {anatomy.readout!r}. Known: {known}, or an index.")
    root = find(model, anatomy.root) if anatomy.root else model
    blocks = find(root, anatomy.blocks) if anatomy.blocks else nn.ModuleList()
    if not isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        names = ", ".join(n for n, m in model.named_modules() if isinstance(m, nn.ModuleList))
        whose = anatomy.name if anatomy.name == Anatomy.name else f"the {anatomy.name}"
        raise AnatomyError(
            f"{whose} anatomy looks for a list of blocks at "
            f"{'.'.join(filter(None, [anatomy.root, anatomy.blocks]))!r}, but {type(model).__name__} has none there. "
            f"Lists of modules found: {names or 'none'}. Pass anatomy=vitrail.Anatomy(blocks=...)."
        )
    owner = root if isinstance(root, nn.Module) else model
    return Body(
        anatomy,
        tuple(_block(block, anatomy) for block in blocks),
        pool=_part(model, anatomy.pool, nn.Module),
        owner=owner,
        head=_part(model, anatomy.head, nn.Module),
        temperature=_part(owner, anatomy.temperature, Tensor),
    )


def from_library(module: nn.Module, package: str) -> bool:
    """Return True if the module's own class comes from a package, so that its forward is the library's."""
    return f"{type(module).__module__}.".startswith(f"{package}.")


ZOO = "vitrail.models.zoo"
"""The package of the embedded models, which have the parts of their Hugging Face namesakes."""


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
    _VISION, attention_norm="norm1", ffn_norm="norm2", ffn_input="mlp", ffn_output="mlp", readout="cls_mean"
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
HEADS: dict[str, str | None] = {
    "ForImageClassificationWithTeacher": "first_two",
    "CLIPModel": "cls",
    "CLIPForImageClassification": "mean",
    "ForImageClassification": None,
}
"""Endings of class names with a readout of theirs; None is the family's own."""


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
    """Return True if the texts of a model are known to begin with a special token."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return any(getattr(config, "model_type", "") in MARKED for config in configs)


def answers_with_span(model: nn.Module) -> bool:
    """Return True if a tuple that a model returns begins with the logits of an answer's start and end."""
    return type(model).__name__.endswith("ForQuestionAnswering") and hasattr(model, "qa_outputs")


def _head(model: nn.Module, path: str, family: Anatomy) -> tuple[str, str | int]:
    """The outermost Hugging Face model around the base, and what it reads; a head of another kind is measured."""
    names = path.split(".") if path else []
    for count in range(len(names) + 1):
        here = ".".join(names[:count])
        module = model.get_submodule(here)
        if hasattr(module, "config") and any(from_library(module, package) for package in ("transformers", ZOO)):
            config, name = module.config, type(module).__name__
            pooled = getattr(config, "model_type", "") == "beit" and getattr(config, "use_mean_pooling", False)
            own = "mean" if pooled else family.readout
            return here, next((found or own for end, found in HEADS.items() if name.endswith(end)), "auto")
    return "", "auto"


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
        distilled = type(module).__name__ == "VisionTransformerDistilled"
        readout = "first_two" if distilled else TIMM_POOLS.get(pool, "auto")
        return replace(
            TIMM,
            root=path,
            output=TIMM.output if plain else None,
            prefix=int(getattr(module, "num_prefix_tokens", 0)),
            readout=readout if from_library(module, "timm") else "auto",
            head=path,
            pool=".".join(filter(None, [path, "attn_pool"])) if pool == "map" else None,
            name=f"timm {type(module).__name__}",
        )
    return None


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


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of a model of a known family; None for all others."""
    if isinstance(model, TextTower):
        return TEXT
    return huggingface_anatomy(model) or timm_anatomy(model) or torchvision_anatomy(model)
