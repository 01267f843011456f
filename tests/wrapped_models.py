"""Models as users have them: aliased, tied, shared, compiled, adapted, checkpointed, in training. And a plain twin.

Each case makes of one plain model what a user may have, and the twin that has to be explained alike: the same numbers
in a model of its own, evaluating, without the wrapper.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import timm
import torch
import transformers
from tiny_models import END, IMAGE, texts
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import vitrail

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
TOKENS = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _vit(**dropout: float) -> nn.Module:
    config = transformers.ViTConfig(**SMALL, **(dropout or DROPOUT), **IMAGE)
    return transformers.ViTForImageClassification(config)


def _bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, **DROPOUT, **TOKENS, num_labels=3, max_position_embeddings=12)
    return transformers.BertForSequenceClassification(config)


def _llama(**options: Any) -> nn.Module:
    config = transformers.LlamaConfig(
        **SMALL, **TOKENS, num_key_value_heads=1, attention_dropout=0.3, max_position_embeddings=12, **options
    )
    return transformers.LlamaForCausalLM(config)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(**TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=12)
    return transformers.GPT2LMHeadModel(config)


def _albert() -> nn.Module:
    config = transformers.AlbertConfig(**SMALL, **TOKENS, embedding_size=8, num_labels=3, max_position_embeddings=12)
    return transformers.AlbertForSequenceClassification(config)


def _clip() -> nn.Module:
    large = {"initializer_factor": 4.0}  # or values would be little but their bias, all of one sign
    text = {**SMALL, **large, "vocab_size": END + 1, "bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0}
    vision = {**SMALL, **large, "image_size": 32, "patch_size": 8, "attention_dropout": 0.3}
    towers = {"text_config": {**text, "max_position_embeddings": 12}, "vision_config": vision}
    return transformers.CLIPModel(transformers.CLIPConfig(**towers, projection_dim=8, logit_scale_init_value=1.3))


def _timm() -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    drops = {"drop_path_rate": 0.4, "proj_drop_rate": 0.3, "attn_drop_rate": 0.3}
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **sizes, **drops)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        drop = 0.3 if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Dropout(0.3), nn.Linear(20, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Own(nn.Module):
    """A user's own picture model, with a batch norm whose statistics move in training."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.steady = nn.BatchNorm1d(16)
        self.layers = nn.ModuleList([Layer(16, 2), Layer(16, 2)])
        self.head = nn.Linear(16, 5)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.steady(self.patches(pixel_values).flatten(2)).transpose(1, 2)
        for layer in self.layers:
            x = self.run(layer, x)
        return self.head(x.mean(dim=1))

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)


class CheckpointedOwn(Own):
    """Its own call of non-reentrant checkpointing."""

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x, use_reentrant=False)


class MethodCompiled(Own):
    """One method compiled where the class is written."""

    @torch.compile(backend="eager")
    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)


def _apply(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


_apply_compiled = torch.compile(_apply, backend="eager")


class FunctionCompiled(Own):
    """A compiled function that belongs to no module."""

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return _apply_compiled(layer, x)


BASES: dict[str, Callable[[], nn.Module]] = {
    "vit": _vit, "bert": _bert, "llama": _llama, "gpt2": _gpt2, "albert": _albert, "clip": _clip, "timm": _timm,
    "own": Own, "tied": partial(_llama, tie_word_embeddings=True),
    "without_dropout": partial(_vit, hidden_dropout_prob=0.0),
}  # fmt: skip
ANATOMIES = {
    "own": vitrail.Anatomy(
        blocks="layers", output="attention.out", value_bias="attention.qkv.bias", attention_norm="norm1",
        ffn_norm="norm2", ffn_input="mlp", ffn_output="mlp", readout="mean",
    ),
    "albert": vitrail.Anatomy(prefix=1, readout="cls"),
}  # fmt: skip
TEXT = frozenset({"bert", "llama", "gpt2", "albert", "tied"})


def build(base: str) -> nn.Module:
    """A plain model, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = BASES[base]().double().eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def inputs_of(base: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """One picture or one text, the same every time."""
    dice = torch.Generator().manual_seed(7)
    if base in TEXT:
        ids = torch.randint(3, 40, (1, 6), generator=dice)
        ids[:, 0], ids[:, -1] = 1, 2
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    picture = torch.randn(1, 3, 32, 32, generator=dice, dtype=torch.float64).to(dtype)
    if base == "timm":
        return {"x": picture}
    return {"pixel_values": picture, **(texts() if base == "clip" else {})}


Wrap = Callable[[nn.Module], nn.Module]


def same(model: nn.Module) -> nn.Module:
    """The model as it is."""
    return model


# Aliases, ties and sharing


class Holding(nn.Module):
    """A model inside another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **kwargs: Any) -> Any:
        return self.inner(**kwargs)


def aliased(model: nn.Module) -> nn.Module:
    """Its base by a second name, after the model."""
    holder = Holding(model)
    holder.body = _base(model)
    return holder


def aliased_before(model: nn.Module) -> nn.Module:
    """Its base, a list of its blocks and one parameter by second names, before the model."""
    holder = Holding(nn.Identity())
    del holder.inner
    base = _base(model)
    holder.body = base
    holder.blocks = nn.ModuleList([*_blocks(model)][::-1])
    holder.weight = next(iter(model.parameters()))
    holder.inner = model
    return holder


def _base(model: nn.Module) -> nn.Module:
    return getattr(model, getattr(model, "base_model_prefix", ""), None) or next(model.children())


def _blocks(model: nn.Module) -> nn.ModuleList:
    return next(m for m in model.modules() if isinstance(m, nn.ModuleList))


def shared_rotary(model: nn.Module) -> nn.Module:
    """Every block holds the one rotary embedding too."""
    for block in model.model.layers:
        block.self_attn.rotary_emb = model.model.rotary_emb
    return model


def with_one_norm(model: nn.Module) -> nn.Module:
    """One norm in all places of all blocks."""
    for block in _blocks(model):
        block.layernorm_before = block.layernorm_after = model.vit.layernorm
    return model


def with_equal_norms(model: nn.Module) -> nn.Module:
    """As many norms with the same values."""
    for block in _blocks(model):
        block.layernorm_before = copy.deepcopy(model.vit.layernorm)
        block.layernorm_after = copy.deepcopy(model.vit.layernorm)
    return model


def with_one_mlp(model: nn.Module) -> nn.Module:
    """One feed-forward part in both blocks."""
    first, second = _blocks(model)
    second.mlp = first.mlp
    return model


def with_equal_mlps(model: nn.Module) -> nn.Module:
    """Two feed-forward parts with the same values."""
    first, second = _blocks(model)
    second.mlp = copy.deepcopy(first.mlp)
    return model


def with_one_attention(model: nn.Module) -> nn.Module:
    """One attention in both blocks."""
    first, second = _blocks(model)
    second.attention = first.attention
    return model


def with_equal_attention(model: nn.Module) -> nn.Module:
    """Two attentions with the same values."""
    first, second = _blocks(model)
    second.attention = copy.deepcopy(first.attention)
    return model


def with_one_block(model: nn.Module) -> nn.Module:
    """One block, twice."""
    blocks = _blocks(model)
    blocks[1] = blocks[0]
    return model


def with_equal_blocks(model: nn.Module) -> nn.Module:
    """Two blocks with the same values."""
    blocks = _blocks(model)
    blocks[1] = copy.deepcopy(blocks[0])
    return model


# Compilation, data parallelism, adapters


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_parts(model: nn.Module) -> nn.Module:
    """One block wrapped, the other compiled in place, the head's forward replaced by compiled code."""
    blocks = _blocks(model)
    blocks[0] = torch.compile(blocks[0], backend="eager")
    blocks[1].compile(backend="eager")
    head = next(m for m in reversed([*model.modules()]) if isinstance(m, nn.Linear))
    head.forward = torch.compile(head.forward, backend="eager")
    return model


def of_class(kind: type[nn.Module], model: nn.Module) -> nn.Module:
    """The model as one of another class."""
    model.__class__ = kind
    return model


def parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(model)


def parallel_inside(model: nn.Module) -> nn.Module:
    blocks = _blocks(model)
    blocks[1] = nn.DataParallel(blocks[1])
    return Holding(nn.DataParallel(model))


def adapted(model: nn.Module, *, zero: bool = False) -> nn.Module:
    """Low-rank adapters around projections, with dropout, in training as peft leaves them.

    Args:
        zero: adapters that add nothing yet, as training starts with them.
    """
    import peft

    ends = ("q_proj", "query", "v_proj", "value", "o_proj")
    names = sorted({n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)} & {*ends})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        options = {"r": 2, "lora_alpha": 3, "lora_dropout": 0.3, "target_modules": names}
        config = peft.LoraConfig(**options, init_lora_weights=zero)
        return peft.get_peft_model(model, config).double().train()


# Training


def training(model: nn.Module) -> nn.Module:
    return model.train()


def mixed(model: nn.Module) -> nn.Module:
    """Every other module in training."""
    for place, module in enumerate(model.modules()):
        module.training = place % 2 == 0
    return model


def checkpointed(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def checkpointed_reentrant(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model.train()


def checkpointed_timm(model: nn.Module) -> nn.Module:
    model.set_grad_checkpointing()
    return model.train()


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(requires_grad=False)


def partly_frozen(model: nn.Module) -> nn.Module:
    for place, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(place % 3 == 0)
    return model


def weight_normed(model: nn.Module) -> nn.Module:
    for module in [m for m in model.modules() if isinstance(m, nn.Linear)]:
        parametrizations.weight_norm(module)
    return model


def weight_normed_by_hooks(model: nn.Module) -> nn.Module:
    """The older way: a hook writes the weight before every call."""
    for module in [m for m in model.modules() if isinstance(m, nn.Linear)]:
        nn.utils.weight_norm(module)
    return model


def spectral_normed(model: nn.Module) -> nn.Module:
    """In training every call moves two buffers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        for block in _blocks(model):
            for module in [m for m in block.modules() if isinstance(m, nn.Linear)]:
                parametrizations.spectral_norm(module)
    return model.train()


def spectral_normed_once(model: nn.Module) -> nn.Module:
    """The same weights, computed once."""
    model = spectral_normed(model).eval()
    for module in [m for m in model.modules() if parametrize.is_parametrized(m)]:
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    return model


def with_gradients(model: nn.Module) -> nn.Module:
    dice = torch.Generator().manual_seed(13)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=dice, dtype=torch.float64).to(parameter.dtype)
    return model


CALLS: list[str] = []


def with_hooks(model: nn.Module) -> nn.Module:
    """Hooks of every sort that look on, and one that changes what a block gives."""
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, args: CALLS.append("before"))
        module.register_forward_hook(lambda module, args, kwargs, out: CALLS.append("after"), with_kwargs=True)
    model.register_full_backward_hook(lambda module, given, out: CALLS.append("backward"))
    model.register_state_dict_pre_hook(lambda *args: CALLS.append("state"))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: CALLS.append("gradient"))
        parameter.register_post_accumulate_grad_hook(lambda parameter: CALLS.append("accumulated"))
    return steered(model)


def steered(model: nn.Module) -> nn.Module:
    """A hook that doubles what the last norm gives."""
    norm = [m for m in model.modules() if isinstance(m, nn.LayerNorm)][-1]
    norm.register_forward_hook(lambda module, args, out: 2 * out)
    return model


def half(model: nn.Module) -> nn.Module:
    return model.bfloat16()


def single(model: nn.Module) -> nn.Module:
    return model.float()


@dataclass(frozen=True)
class Case:
    """Something a user may have.

    Args:
        bases: the first is explained by every method; the others by those that do not apply to it.
        twin: what is explained alike, made of the same plain model.
        around: what the caller is inside of, for both.
        only: the caller is inside of it for the model alone.
        dtype: of the inputs.
        extra: further keywords of the call, of the model alone.
        refused: the error with which every method refuses the model, though it explains the twin.
        apart: by method, how far its scores may be from the twin's, relative to the largest, and why.
    """

    wrap: Wrap
    bases: tuple[str, ...] = ("vit", "clip")
    twin: Wrap = same
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    only: Callable[[], AbstractContextManager[Any]] = nullcontext
    dtype: torch.dtype = torch.float64
    extra: Mapping[str, Any] | None = None
    refused: str | None = None
    apart: Mapping[str, float] = field(default_factory=dict)

    def model(self, base: str) -> nn.Module:
        return self.wrap(build(base))

    def inputs(self, base: str) -> dict[str, Any]:
        return {**inputs_of(base, self.dtype), **(self.extra or {})}


def _autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


CASES: dict[str, Case] = {
    "plain": Case(same),
    "aliased": Case(aliased, ("vit", "clip", "llama"), Holding),
    "aliased_before": Case(aliased_before, ("vit", "llama"), Holding),
    "aliased_decoder": Case(aliased, ("llama",), Holding),
    "tied": Case(same, ("tied",)),
    "tied_gpt2": Case(same, ("gpt2",)),
    "shared_rotary": Case(shared_rotary, ("llama",)),
    "one_norm": Case(with_one_norm, ("vit",), with_equal_norms),
    "one_mlp": Case(with_one_mlp, ("vit",), with_equal_mlps),
    "one_attention": Case(with_one_attention, ("vit",), with_equal_attention),
    "one_block": Case(with_one_block, ("vit",), with_equal_blocks, refused="SeamError"),
    "compiled": Case(compiled),
    "compiled_in_place": Case(compiled_in_place),
    "compiled_parts": Case(compiled_parts),
    "compiled_method": Case(partial(of_class, MethodCompiled), ("own",)),
    "compiled_function": Case(partial(of_class, FunctionCompiled), ("own",)),
    "parallel": Case(parallel),
    "parallel_inside": Case(parallel_inside, ("vit", "clip"), Holding),
    "adapted": Case(adapted, ("vit", "clip"), adapted),
    # A sum with nothing is one more operation: LRP's has a stabiliser, and absLRP doubles what is positive in each.
    "adapted_with_nothing": Case(partial(adapted, zero=True), apart={"lrp": 1e-7, "abs_lrp": 1.0}),
    "adapted_decoder": Case(adapted, ("llama",), adapted),
    "training": Case(training),
    "training_timm": Case(training, ("timm",)),
    "training_own": Case(training, ("own",)),
    "training_text": Case(training, ("bert",)),
    "mixed": Case(mixed),
    "checkpointed": Case(checkpointed),
    "checkpointed_reentrant": Case(checkpointed_reentrant),
    "checkpointed_timm": Case(checkpointed_timm, ("timm",)),
    "checkpointed_own": Case(partial(of_class, CheckpointedOwn), ("own",)),
    "cached": Case(same, ("llama",), extra={"use_cache": True}),
    "frozen": Case(frozen),
    "partly_frozen": Case(partly_frozen),
    "weight_normed": Case(weight_normed),
    "weight_normed_by_hooks": Case(weight_normed_by_hooks),
    "spectral_normed": Case(spectral_normed, ("vit",), spectral_normed_once),
    "half": Case(half, twin=half, dtype=torch.bfloat16),
    "single": Case(single, twin=single, dtype=torch.float32),
    "with_gradients": Case(with_gradients),
    "hooked": Case(with_hooks, twin=steered),
    "without_gradients": Case(same, only=torch.no_grad),
    "inference": Case(same, only=torch.inference_mode),
    "autocast": Case(single, twin=single, around=_autocast, dtype=torch.float32),
}
