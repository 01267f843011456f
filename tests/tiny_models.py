"""Every supported family as a tiny model built from a config, with inputs for it. Nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

WIDTH = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
VOCABULARY = {"vocab_size": 60, "pad_token_id": 0}
DECODER = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 5}
NARROW = {"embed_dim": 96, "num_heads": 3}
"""For models of timm whose own width would take most of the time."""


@dataclass(frozen=True)
class Tiny:
    build: Callable[[], nn.Module]
    kind: str = "text"
    size: tuple[int, int] = (32, 32)
    prefix: int = 1
    readout: str | int = "cls"
    seam: str = "fused"
    tensor: bool = False  # called with a tensor instead of keywords
    texts: bool = False  # compares pictures with texts, so a class is a text
    end: int = 2  # the last token of a text

    def inputs(self, batch: int = 2, dtype=torch.float64):
        torch.manual_seed(7)
        if self.kind == "image":
            x = torch.randn(batch, 3, *self.size, dtype=dtype)
            named = {"pixel_values": x, **(texts() if self.texts else {})}
            return x if self.tensor else named
        ids = torch.randint(3, 60, (batch, 9))
        ids[:, 0], ids[:, -1] = 1, self.end
        return ids if self.tensor else {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


END = 60  # CLIP reads a text at its first end token


def texts(lengths=(6, 4, 7, 5)):
    """Texts of different lengths to compare pictures with."""
    ids = torch.randint(3, END, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(5))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[:, 0] = 1
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def _clip(name: str = "CLIPModel", **options):
    def build():
        import transformers

        large = {"initializer_factor": 4.0}  # or values would be little but their bias, all of one sign
        text = {**WIDTH, "hidden_size": 20, "num_attention_heads": 2, "max_position_embeddings": 20, **large}
        text |= {"vocab_size": END + 1, "bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0}
        vision = {**WIDTH, "image_size": 32, "patch_size": 8, **large}
        towers = {"text_config": text, "vision_config": vision, "projection_dim": 16, "logit_scale_init_value": 1.3}
        return getattr(transformers, name)(transformers.CLIPConfig(**towers, num_labels=5, **options))

    return build


def _text_tower():
    from vitrail import TextTower

    pictures = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    return TextTower(_clip()(), pictures)


def _hf(name: str, config: str, **options):
    def build():
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**options))

    return build


def _timm(name: str, **options):
    def build():
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **options)

    return build


def _torchvision():
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=3, hidden_dim=24, mlp_dim=40, num_classes=5
    )
    nn.init.normal_(model.heads.head.weight)  # torchvision starts it at zero, which has no gradient
    return model


class OwnClassifier(nn.Module):
    """A user's model: embeddings, `nn.TransformerEncoder`, the mean of the tokens."""

    def __init__(self, *, norm_first: bool, batch_first: bool = True):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(60, 24)
        self.places = nn.Parameter(torch.randn(20, 24))
        layer = nn.TransformerEncoderLayer(24, 3, 40, norm_first=norm_first, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(24, 5)

    def forward(self, ids):
        padding = ids == 0
        x = self.embed(ids) + self.places[: ids.shape[1]]
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x if self.batch_first else x.transpose(0, 1)
        kept = (~padding).to(x.dtype)[:, :, None]
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1))


BERT = {**WIDTH, **VOCABULARY, "num_labels": 3, "max_position_embeddings": 20}
MODELS: dict[str, Tiny] = {
    "hf_vit": Tiny(_hf("ViTForImageClassification", "ViTConfig", **WIDTH, **IMAGE), "image"),
    "hf_vit_eager": Tiny(
        _hf("ViTForImageClassification", "ViTConfig", **WIDTH, **IMAGE, attn_implementation="eager"),
        "image", seam="hand-written",
    ),
    "hf_deit": Tiny(_hf("DeiTForImageClassification", "DeiTConfig", **WIDTH, **IMAGE), "image", prefix=2),
    "hf_deit_teacher": Tiny(
        _hf("DeiTForImageClassificationWithTeacher", "DeiTConfig", **WIDTH, **IMAGE),
        "image", prefix=2, readout="first_two",
    ),
    "hf_dinov2": Tiny(
        _hf("Dinov2ForImageClassification", "Dinov2Config", **{**WIDTH, "mlp_ratio": 2}, **IMAGE),
        "image", readout="cls_mean",
    ),
    "hf_dinov2_registers": Tiny(
        _hf("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig",
            **{**WIDTH, "mlp_ratio": 2}, **IMAGE, num_register_tokens=4),
        "image", prefix=5, readout="cls_mean",
    ),
    "hf_beit": Tiny(
        _hf("BeitForImageClassification", "BeitConfig", **WIDTH, **IMAGE, use_relative_position_bias=True),
        "image", readout="mean",
    ),
    "hf_clip": Tiny(_clip(), "image", texts=True),
    "hf_clip_eager": Tiny(_clip(attn_implementation="eager"), "image", seam="hand-written", texts=True),
    "hf_clip_classifier": Tiny(_clip("CLIPForImageClassification"), "image", readout="mean"),
    "hf_clip_text": Tiny(_text_tower, readout="auto", end=END),
    "hf_bert": Tiny(_hf("BertForSequenceClassification", "BertConfig", **BERT)),
    "hf_bert_eager": Tiny(
        _hf("BertForSequenceClassification", "BertConfig", **BERT, attn_implementation="eager"), seam="hand-written"
    ),
    "hf_roberta": Tiny(_hf("RobertaForSequenceClassification", "RobertaConfig", **BERT)),
    "hf_distilbert": Tiny(
        _hf("DistilBertForSequenceClassification", "DistilBertConfig", vocab_size=60, dim=24, n_layers=3, n_heads=3,
            hidden_dim=40, num_labels=3, max_position_embeddings=20)
    ),
    "hf_electra": Tiny(_hf("ElectraForSequenceClassification", "ElectraConfig", **BERT, embedding_size=16)),
    "hf_mpnet": Tiny(_hf("MPNetForSequenceClassification", "MPNetConfig", **BERT), seam="hand-written"),
    "hf_modernbert": Tiny(
        _hf("ModernBertForSequenceClassification", "ModernBertConfig", **BERT, local_attention=4,
            cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
    ),
    "hf_modernbert_mean": Tiny(
        _hf("ModernBertForSequenceClassification", "ModernBertConfig", **BERT, classifier_pooling="mean",
            cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2),
        readout="mean_all",
    ),
    "hf_gpt2": Tiny(
        _hf("GPT2LMHeadModel", "GPT2Config", vocab_size=60, n_embd=24, n_layer=3, n_head=3, n_positions=20,
            bos_token_id=1, eos_token_id=2, pad_token_id=0),
        prefix=0, readout="last",
    ),
    "hf_gpt2_classifier": Tiny(
        _hf("GPT2ForSequenceClassification", "GPT2Config", vocab_size=60, n_embd=24, n_layer=3, n_head=3,
            n_positions=20, bos_token_id=1, eos_token_id=2, pad_token_id=0, num_labels=3),
        prefix=0, readout="auto",
    ),
    "hf_llama": Tiny(_hf("LlamaForCausalLM", "LlamaConfig", **DECODER), prefix=0, readout="last"),
    "hf_llama_classifier": Tiny(
        _hf("LlamaForSequenceClassification", "LlamaConfig", **DECODER, num_labels=3), prefix=0, readout="auto"
    ),
    "hf_llama_eager": Tiny(
        _hf("LlamaForCausalLM", "LlamaConfig", **DECODER, attn_implementation="eager"),
        prefix=0, readout="last", seam="hand-written",
    ),
    "hf_qwen3": Tiny(_hf("Qwen3ForCausalLM", "Qwen3Config", **DECODER, head_dim=8), prefix=0, readout="last"),
    "timm_vit": Tiny(_timm("vit_tiny_patch16_224", img_size=64, depth=3), "image", (64, 64), tensor=True),
    "timm_vit_avg": Tiny(
        _timm("vit_tiny_patch16_224", img_size=(48, 80), depth=3, global_pool="avg"),
        "image", (48, 80), readout="mean", tensor=True,
    ),
    "timm_deit_distilled": Tiny(
        _timm("deit_tiny_distilled_patch16_224", img_size=64, depth=3), "image", (64, 64),
        prefix=2, readout="first_two", tensor=True,
    ),
    "timm_deit3": Tiny(
        _timm("deit3_small_patch16_224", img_size=64, depth=3, **NARROW), "image", (64, 64), tensor=True
    ),
    "timm_eva02": Tiny(
        _timm("eva02_tiny_patch14_224", img_size=56, depth=3), "image", (56, 56), readout="mean", tensor=True
    ),
    "timm_eva02_base": Tiny(
        _timm("eva02_base_patch14_224", img_size=56, depth=2, **NARROW), "image", (56, 56), readout="mean", tensor=True
    ),
    "timm_dinov2": Tiny(
        _timm("vit_small_patch14_dinov2", img_size=56, depth=3, **NARROW), "image", (56, 56), tensor=True
    ),
    "timm_dinov2_registers": Tiny(
        _timm("vit_small_patch14_reg4_dinov2", img_size=56, depth=3, **NARROW), "image", (56, 56), prefix=5, tensor=True
    ),
    "timm_siglip": Tiny(
        _timm("vit_base_patch16_siglip_224", img_size=64, depth=2, **NARROW), "image", (64, 64),
        prefix=0, readout="pool", tensor=True,
    ),
    "torchvision_vit": Tiny(_torchvision, "image", tensor=True),
    "own_post_norm": Tiny(lambda: OwnClassifier(norm_first=False), prefix=0, readout="auto", tensor=True),
    "own_pre_norm": Tiny(lambda: OwnClassifier(norm_first=True), prefix=0, readout="auto", tensor=True),
    "own_time_first": Tiny(
        lambda: OwnClassifier(norm_first=False, batch_first=False), prefix=0, readout="auto", tensor=True
    ),
}  # fmt: skip


@cache
def tiny(name: str) -> nn.Module:
    torch.manual_seed(3)
    model = MODELS[name].build().double().eval()
    for parameter in model.parameters():  # layer scale and heads start near zero, which would hide mistakes
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model
