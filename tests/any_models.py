"""Tiny unmodified models of today's libraries and of one's own, with inputs for each. Nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vitrail import targets

WORDS = 64
TEXT = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
SHORT = {name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
MARKS = {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, **MARKS, "num_key_value_heads": 2}
GPT = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **MARKS}
PICTURE = {**SHORT, "image_size": 32, "patch_size": 8}
DEEPER = {**PICTURE, "num_hidden_layers": 3}
"""In two blocks a patch is read through one norm alone, which its length does not change: AttCAT gives zeros."""
EAGER_EXPERTS = {"experts_implementation": "eager"}  # the grouped kernel has no float64
EXPERTS = {**EAGER_EXPERTS, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {**EAGER_EXPERTS, "num_local_experts": 3, "num_experts_per_tok": 2}
MLA = {
    **GROUPED, **EAGER_EXPERTS, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A model of the table.

    Args:
        build: makes the model.
        shown: what it looks at: `text`, `image`, `audio`, `frames`, `video`, `table` or `series`.
        group: the part of the table it stands in.
        refused: words of the error that every method gives, where no method applies.
        attentions: whether the model returns its attention maps with their graph, so that a reference can be computed.
        options: how the inputs are made.
        kind: the class of the model.
        halves: whether one half of the answer is read from the class token and the other from the patches.
        position: the token that is explained, where the model answers at every token and is not causal.
        single: whether the model gives one number, and not one for each class.
        asks: gives what is explained, where the answer is no row of classes.
    """

    build: Callable[..., nn.Module]
    shown: str
    group: str
    refused: str | None = None
    attentions: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    kind: str = ""
    position: int | None = None
    halves: bool = False
    single: bool = False
    asks: Callable[[int], Any] | None = None

    def target(self, index: int) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
        """What is explained, and the same scalar of the logits."""
        index = 0 if self.single else index
        if self.asks is not None:
            return self.asks(index), self.asks(index)
        if self.position is not None:
            return targets.logit(index, position=self.position), lambda logits: logits[:, self.position, index]
        return index, lambda logits: logits[:, -1, index] if logits.ndim == 3 else logits[:, index]

    def inputs(self, batch: int = 2) -> Any:
        return INPUTS[self.shown](batch, **dict(self.options))


def words(batch: int, *, mask: bool = True, length: int = 9) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, WORDS, (batch, length), generator=torch.Generator().manual_seed(3))
    ids[:, 0], ids[:, -1] = 1, 2
    return {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


INPUTS: dict[str, Callable[..., Any]] = {
    "text": words,
    "ids": lambda batch: words(batch)["input_ids"],
    "image": lambda batch, size=32: {"pixel_values": noise(batch, 3, size, size)},
    "pixels": lambda batch, size=32: noise(batch, 3, size, size),
    "audio": lambda batch, samples=400: {"input_values": noise(batch, samples)},
    "spectrum": lambda batch, name="input_values", shape=(24, 16): {name: noise(batch, *shape)},
    "video": lambda batch, name="pixel_values": {name: noise(batch, 4, 3, 16, 16)},
    "table": lambda batch: noise(batch, 6),
    "series": lambda batch: noise(batch, 10, 3),
    "values": lambda batch: {"past_values": noise(batch, 24, 2)},
}


def hf(name: str, **options: Any) -> Callable[..., nn.Module]:
    def build(**more: Any) -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**{**options, **more}))

    return build


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **options)

    return build


def decoder(name: str, *, attentions: bool = True, refused: str | None = None, **options: Any) -> Entry:
    return Entry(hf(name, **options), "text", "decoders", refused, attentions, kind=name)


def encoder(
    name: str, *, attentions: bool = True, refused: str | None = None, position: int | None = None, **options: Any
) -> Entry:
    build = hf(name, **{"num_labels": 3, **options})
    return Entry(build, "text", "encoders", refused, attentions, kind=name, position=position)


def long(name: str, *, refused: str | None = None, **options: Any) -> Entry:
    """An encoder of a text that is longer than what modules are sought on."""
    return replace(encoder(name, refused=refused, **options), options=(("length", 100),))


def vision(name: str, *, attentions: bool = True, refused: str | None = None, **options: Any) -> Entry:
    build, halves = hf(name, **{"num_labels": 5, **options}), name.startswith("Dinov2")
    return Entry(build, "image", "vision", refused, attentions, kind=name, halves=halves)


def timm_vit(name: str, *, size: int = 32, refused: str | None = None, **options: Any) -> Entry:
    return Entry(timm(name, **options), "pixels", "timm", refused, options=(("size", size),), kind=name)


DECODERS = {
    "llama": decoder("LlamaForCausalLM", **GROUPED),
    "mistral": decoder("MistralForCausalLM", **GROUPED, sliding_window=4),
    "qwen2": decoder("Qwen2ForCausalLM", **GROUPED),
    "qwen3": decoder("Qwen3ForCausalLM", **GROUPED, head_dim=8),
    "qwen2_moe": decoder("Qwen2MoeForCausalLM", **GROUPED, **EXPERTS, shared_expert_intermediate_size=24),
    "qwen3_moe": decoder("Qwen3MoeForCausalLM", **GROUPED, **EXPERTS, head_dim=8),
    "gemma": decoder("GemmaForCausalLM", **GROUPED, head_dim=8),
    "gemma2": decoder("Gemma2ForCausalLM", **GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=4),
    "gemma3": decoder("Gemma3ForCausalLM", **GROUPED, head_dim=8, query_pre_attn_scalar=8),
    "phi": decoder("PhiForCausalLM", **TEXT, **MARKS),
    "phi3": decoder("Phi3ForCausalLM", **GROUPED),
    "phimoe": decoder("PhimoeForCausalLM", **GROUPED, **ROUTED),
    "olmo": decoder("OlmoForCausalLM", **GROUPED),
    "olmo2": decoder("Olmo2ForCausalLM", **GROUPED),
    "olmo3": decoder("Olmo3ForCausalLM", **GROUPED, sliding_window=4),
    "olmoe": decoder("OlmoeForCausalLM", **GROUPED, **EAGER_EXPERTS, num_experts=3, num_experts_per_tok=2),
    "mixtral": decoder("MixtralForCausalLM", **GROUPED, **ROUTED),
    "gpt_neox": decoder("GPTNeoXForCausalLM", **TEXT, **MARKS),
    "gpt_neox_serial": decoder("GPTNeoXForCausalLM", **TEXT, **MARKS, use_parallel_residual=False),
    "opt": decoder("OPTForCausalLM", **{**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, **MARKS),
    "gptj": decoder("GPTJForCausalLM", **GPT, rotary_dim=4),
    "gpt2": decoder("GPT2LMHeadModel", **GPT),
    "gpt_neo": decoder("GPTNeoForCausalLM", vocab_size=WORDS, hidden_size=32, num_layers=2, num_heads=4,
                       attention_types=[[["global", "local"], 1]], max_position_embeddings=64, window_size=4, **MARKS),
    "gpt_bigcode": decoder("GPTBigCodeForCausalLM", **GPT),
    "openai_gpt": decoder("OpenAIGPTLMHeadModel", **{k: v for k, v in GPT.items() if "token" not in k}),
    "ctrl": decoder("CTRLLMHeadModel", vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, dff=48, n_positions=64),
    "codegen": decoder("CodeGenForCausalLM", **GPT, rotary_dim=4, n_ctx=64),
    "cohere": decoder("CohereForCausalLM", **GROUPED),
    "cohere2": decoder("Cohere2ForCausalLM", **GROUPED, head_dim=8, sliding_window=4),
    "falcon": decoder("FalconForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
                      num_attention_heads=4, new_decoder_architecture=True, num_kv_heads=2, **MARKS),
    "falcon_alibi": decoder("FalconForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
                            num_attention_heads=4, alibi=True, multi_query=False, parallel_attn=False,
                            attn_implementation="eager", **MARKS),
    "bloom": decoder("BloomForCausalLM", vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4, **MARKS),
    "mpt": decoder("MptForCausalLM", vocab_size=WORDS, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, **MARKS),
    "stablelm": decoder("StableLmForCausalLM", **GROUPED),
    "starcoder2": decoder("Starcoder2ForCausalLM", **GROUPED),
    "deepseek_v2": decoder("DeepseekV2ForCausalLM", **MLA),
    "deepseek_v3": decoder("DeepseekV3ForCausalLM", **MLA),
    "gpt_oss": decoder("GptOssForCausalLM", **GROUPED, **ROUTED, head_dim=8, sliding_window=4),
    "granite": decoder("GraniteForCausalLM", **GROUPED, residual_multiplier=0.5),
    "granitemoe": decoder("GraniteMoeForCausalLM", **GROUPED, **ROUTED),
    "persimmon": decoder("PersimmonForCausalLM", **TEXT, **MARKS),
    "biogpt": decoder("BioGptForCausalLM", **TEXT, **MARKS),
    "glm": decoder("GlmForCausalLM", **GROUPED, head_dim=8),
    "glm4": decoder("Glm4ForCausalLM", **GROUPED, head_dim=8),
    "nemotron": decoder("NemotronForCausalLM", **GROUPED),
    "smollm3": decoder("SmolLM3ForCausalLM", **GROUPED),
    "helium": decoder("HeliumForCausalLM", **GROUPED, head_dim=8),
    "ernie4_5": decoder("Ernie4_5ForCausalLM", **GROUPED, head_dim=8),
    "exaone4": decoder("Exaone4ForCausalLM", **GROUPED, head_dim=8, sliding_window=4),
    "arcee": decoder("ArceeForCausalLM", **GROUPED),
    "apertus": decoder("ApertusForCausalLM", **GROUPED),
    "seed_oss": decoder("SeedOssForCausalLM", **GROUPED, head_dim=8),
    "bitnet": decoder("BitNetForCausalLM", **GROUPED),
    "diffllama": decoder("DiffLlamaForCausalLM", attentions=False, refused="in no block|.", **GROUPED),
    "jetmoe": decoder("JetMoeForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, kv_channels=8,
                      num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2, intermediate_size=48, **MARKS),
    "llama_classes": decoder("LlamaForSequenceClassification", **GROUPED, num_labels=3),
    "gemma_classes": decoder("GemmaForSequenceClassification", **GROUPED, head_dim=8, num_labels=3),
    "mamba": decoder("MambaForCausalLM", attentions=False, refused="no attention was seen", vocab_size=WORDS,
                     hidden_size=32, num_hidden_layers=2, state_size=4, **MARKS),
    "jamba": decoder("JambaForCausalLM", attentions=False, refused="mix tokens|of the", **GROUPED, **EAGER_EXPERTS,
                     attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, num_experts=2, mamba_d_state=4,
                     mamba_dt_rank=4),
    "recurrent_gemma": decoder("RecurrentGemmaForCausalLM", attentions=False, refused="mix tokens", vocab_size=WORDS,
                               hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
                               lru_width=32, attention_window_size=8, **MARKS),
}  # fmt: skip
BERT = TEXT
ENCODERS = {
    "bert": encoder("BertForSequenceClassification", **BERT),
    "roberta": encoder("RobertaForSequenceClassification", **BERT),
    "distilbert": encoder("DistilBertForSequenceClassification", vocab_size=WORDS, dim=32, hidden_dim=48, n_layers=2,
                          n_heads=4, max_position_embeddings=64),
    "camembert": encoder("CamembertForSequenceClassification", **BERT),
    "roberta_prelayernorm": encoder("RobertaPreLayerNormForSequenceClassification", **BERT),
    "xlm_roberta_xl": encoder("XLMRobertaXLForSequenceClassification", **BERT),
    "data2vec_text": encoder("Data2VecTextForSequenceClassification", **BERT),
    "albert": encoder("AlbertForSequenceClassification", **BERT, embedding_size=16),
    "albert_groups": encoder("AlbertForSequenceClassification", **{**BERT, "num_hidden_layers": 4}, embedding_size=16,
                             num_hidden_groups=2),
    "electra": encoder("ElectraForSequenceClassification", **BERT, embedding_size=16),
    "deberta": encoder("DebertaForSequenceClassification", **BERT, relative_attention=True,
                       pos_att_type=["p2c", "c2p"], max_relative_positions=16),
    "deberta_v2": encoder("DebertaV2ForSequenceClassification", **BERT, relative_attention=True,
                          pos_att_type=["p2c", "c2p"], max_relative_positions=16),
    "deberta_v3": encoder("DebertaV2ForSequenceClassification", **BERT, relative_attention=True, share_att_key=True,
                          pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm"),
    "mpnet": encoder("MPNetForSequenceClassification", **BERT),
    "modernbert": encoder("ModernBertForSequenceClassification", **BERT, cls_token_id=1, sep_token_id=2,
                          reference_compile=False, **MARKS),
    "xlnet": encoder("XLNetForSequenceClassification", attentions=False, vocab_size=WORDS, d_model=32, n_layer=2,
                     n_head=4, d_inner=48),
    "ernie": encoder("ErnieForSequenceClassification", **BERT),
    "megatron_bert": encoder("MegatronBertForSequenceClassification", **BERT),
    "mobilebert": encoder("MobileBertForSequenceClassification", refused="feed more than one token", **BERT,
                          embedding_size=32, true_hidden_size=16,
                          intra_bottleneck_size=16, num_feedforward_networks=2),
    "squeezebert": encoder("SqueezeBertForSequenceClassification", refused="in no block|.", **BERT,
                           embedding_size=32, q_groups=2, k_groups=2,
                           v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2),
    "roformer": encoder("RoFormerForSequenceClassification", **BERT, embedding_size=32),
    "rembert": encoder("RemBertForSequenceClassification", **BERT, input_embedding_size=16, output_embedding_size=16),
    "flaubert": encoder("FlaubertForSequenceClassification", vocab_size=WORDS, emb_dim=32, n_layers=2, n_heads=4,
                        max_position_embeddings=64, pad_index=0),
    "xlm": encoder("XLMForSequenceClassification", vocab_size=WORDS, emb_dim=32, n_layers=2, n_heads=4,
                   max_position_embeddings=64, pad_index=0),
    "xmod": encoder("XmodForSequenceClassification", **BERT, languages=["en_XX"], default_language="en_XX"),
    "ibert": encoder("IBertForSequenceClassification", **BERT),
    "esm": encoder("EsmForSequenceClassification", **BERT, position_embedding_type="rotary", mask_token_id=3),
    "layoutlm": encoder("LayoutLMForSequenceClassification", **BERT),
    "tapas": encoder("TapasForSequenceClassification", **BERT),
    "big_bird": encoder("BigBirdForSequenceClassification", **BERT, attention_type="original_full"),
    "big_bird_long": long("BigBirdForSequenceClassification", **{**BERT, "max_position_embeddings": 128},
                          attention_type="original_full"),
    "big_bird_sparse": long("BigBirdForSequenceClassification", refused="queries and keys cannot be told",
                            **{**BERT, "max_position_embeddings": 128}, attention_type="block_sparse", block_size=4,
                            num_random_blocks=2),
    "t5_tokens": encoder("T5ForTokenClassification", position=3, vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48,
                         num_layers=2, num_heads=4),
    "convbert": encoder("ConvBertForSequenceClassification", attentions=False, refused="mix tokens|cannot be read",
                        **BERT, embedding_size=32, head_ratio=2),
    "nystromformer": encoder("NystromformerForSequenceClassification", attentions=False, refused=".", **BERT,
                             num_landmarks=3, segment_means_seq_len=9),
    "fnet": encoder("FNetForSequenceClassification", attentions=False, refused="no attention was seen",
                    vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, intermediate_size=48,
                    max_position_embeddings=64),
    "longformer": encoder("LongformerForSequenceClassification", attentions=False, refused=".", **BERT,
                          attention_window=4),
    "funnel": encoder("FunnelForSequenceClassification", attentions=False, refused=".", vocab_size=WORDS,
                      block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48, num_decoder_layers=1),
}  # fmt: skip
VISION = {
    "vit": vision("ViTForImageClassification", **DEEPER),
    "deit": vision("DeiTForImageClassification", **DEEPER),
    "beit": vision("BeitForImageClassification", **PICTURE, use_relative_position_bias=True),
    "data2vec_vision": vision("Data2VecVisionForImageClassification", **PICTURE,
                              use_shared_relative_position_bias=True),
    "dinov2": vision("Dinov2ForImageClassification", **PICTURE),
    "dinov2_registers": vision("Dinov2WithRegistersForImageClassification", **PICTURE, num_register_tokens=3),
    "ijepa": vision("IJepaForImageClassification", **PICTURE),
    "vit_msn": vision("ViTMSNForImageClassification", **PICTURE),
    "siglip": vision("SiglipForImageClassification", attentions=False, vision_config=PICTURE),
    "metaclip": vision("CLIPForImageClassification", vision_config=PICTURE),
    "pvt": vision("PvtForImageClassification", attentions=False, image_size=32, num_encoder_blocks=2,
                  depths=[1, 1], sequence_reduction_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[4, 2],
                  strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2]),
    "poolformer": vision("PoolFormerForImageClassification", attentions=False, refused="no attention was seen",
                         depths=[1, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
                         num_encoder_blocks=2, mlp_ratio=2.0),
}  # fmt: skip
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
TIMM = {
    "vit_tiny_patch16_224": timm_vit("vit_tiny_patch16_224", **SMALL),
    "vit_gap": timm_vit("vit_medium_patch16_gap_240", **SMALL),
    "vit_map": timm_vit("vit_base_patch16_siglip_224", **SMALL),
    "vit_map_gap": timm_vit("vit_base_patch16_siglip_gap_224", **SMALL),
    "vit_reg4": timm_vit("vit_small_patch14_reg4_dinov2", **SMALL),
    "vit_dinov2": timm_vit("vit_small_patch14_dinov2", **SMALL),
    "vit_clip": timm_vit("vit_base_patch16_clip_224", **SMALL),
    "vit_quickgelu": timm_vit("vit_base_patch16_clip_quickgelu_224", **SMALL),
    "vit_parallel": timm_vit("vit_small_patch16_18x2_224", refused="side by side", **SMALL),
    "vit_relpos": timm_vit("vit_relpos_small_patch16_224", **SMALL),
    "vit_relpos_cls": timm_vit("vit_relpos_base_patch16_cls_224", **SMALL),
    "vit_relpos_rpn": timm_vit("vit_relpos_small_patch16_rpn_224", **SMALL),
    "vit_srelpos": timm_vit("vit_srelpos_small_patch16_224", **SMALL),
    "vit_r_hybrid": timm_vit("vit_tiny_r_s16_p8_224", size=64, img_size=64, embed_dim=24, depth=2, num_heads=3),
    "vit_so150m": timm_vit("vit_so150m_patch16_reg4_gap_256", **SMALL),
    "vit_wee_rope": timm_vit("vit_wee_patch16_reg1_gap_256", **SMALL),
    "vit_dlittle": timm_vit("vit_dlittle_patch16_reg1_gap_256", refused="attend once", **SMALL),
    "vit_betwixt": timm_vit("vit_betwixt_patch16_reg4_gap_256", **SMALL),
    "vit_scaling_parallel": timm_vit("vit_pwee_patch16_reg1_gap_256", **SMALL),
    "flexivit": timm_vit("flexivit_small", **SMALL),
    "deit": timm_vit("deit_tiny_patch16_224", **SMALL),
    "deit_distilled": timm_vit("deit_tiny_distilled_patch16_224", **SMALL),
    "deit3": timm_vit("deit3_small_patch16_224", **SMALL),
    "beit": timm_vit("beit_base_patch16_224", **SMALL),
    "beitv2": timm_vit("beitv2_base_patch16_224", **SMALL),
    "eva": timm_vit("eva_giant_patch14_224", **SMALL),
    "eva02": timm_vit("eva02_tiny_patch14_224", **SMALL),
    "vit_rope_eva": timm_vit("vit_medium_patch16_rope_reg1_gap_256", **SMALL),
    "vit_rope_ape": timm_vit("vit_small_patch16_rope_ape_224", **SMALL),
    "vit_pe_core": timm_vit("vit_pe_core_tiny_patch16_384", **SMALL),
    "dinov3": timm_vit("vit_small_patch16_dinov3", **SMALL),
    "naflexvit": timm_vit("naflexvit_base_patch16_gap", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3),
    "convit": timm_vit("convit_tiny", refused="changed after its softmax|.", **SMALL),
    "samvit": timm_vit("samvit_base_patch16", refused=".", **{**SMALL, "patch_size": 4}),
    "xcit": timm_vit("xcit_nano_12_p8_224", refused=".", **SMALL),
    "sequencer": timm_vit("sequencer2d_s", refused="no attention was seen", size=32, img_size=32),
}  # fmt: skip
AUDIO = {
    "num_labels": 4, "conv_dim": (16, 16), "conv_kernel": (5, 3), "conv_stride": (4, 2), "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 20,
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
}  # fmt: skip


def audio(name: str, *, attentions: bool = True, shown: str = "audio", options=(), **more: Any) -> Entry:
    return Entry(hf(name, **more), shown, "audio", None, attentions, options=options, kind=name)


AUDIOS = {
    "wav2vec2": audio("Wav2Vec2ForSequenceClassification", **AUDIO),
    "hubert": audio("HubertForSequenceClassification", **AUDIO),
    "wavlm": audio("WavLMForSequenceClassification", attentions=False, **AUDIO),
    "unispeech": audio("UniSpeechForSequenceClassification", **AUDIO),
    "unispeech_sat": audio("UniSpeechSatForSequenceClassification", **AUDIO),
    "data2vec_audio": audio("Data2VecAudioForSequenceClassification", **AUDIO),
    "sew": audio("SEWForSequenceClassification", **AUDIO, squeeze_factor=1),
    "ast": audio("ASTForAudioClassification", shown="spectrum", **{**SHORT, "num_hidden_layers": 3}, num_labels=4,
                 max_length=24, num_mel_bins=16, patch_size=8, frequency_stride=8, time_stride=8),
    "whisper": audio("WhisperForAudioClassification", shown="spectrum", num_labels=4, vocab_size=WORDS, d_model=32,
                     encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1,
                     decoder_attention_heads=4, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=10,
                     classifier_proj_size=8, pad_token_id=0, decoder_start_token_id=1, bos_token_id=1, eos_token_id=2,
                     options=(("name", "input_features"), ("shape", (8, 20)))),
}  # fmt: skip
VIDEO = {**SHORT, "image_size": 16, "patch_size": 8, "num_labels": 4}
VIDEOS = {
    "videomae": Entry(hf("VideoMAEForVideoClassification", **VIDEO, num_frames=4, tubelet_size=2), "video", "video",
                      attentions=True, kind="VideoMAEForVideoClassification"),
    "vivit": Entry(hf("VivitForVideoClassification", **VIDEO, num_frames=4, tubelet_size=[2, 8, 8]), "video", "video",
                   attentions=True, kind="VivitForVideoClassification"),
    "timesformer": Entry(hf("TimesformerForVideoClassification", **VIDEO, num_frames=4), "video", "video",
                         refused=".", kind="TimesformerForVideoClassification"),
    "timesformer_joint": Entry(
        hf("TimesformerForVideoClassification", **VIDEO, num_frames=4, attention_type="joint_space_time"), "video",
        "video", attentions=True, kind="TimesformerForVideoClassification"),
    "vjepa2": Entry(
        hf("VJEPA2ForVideoClassification", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, crop_size=16,
           patch_size=8, frames_per_clip=4, tubelet_size=2, num_labels=4, num_pooler_layers=1), "video", "video",
        options=(("name", "pixel_values_videos"),), kind="VJEPA2ForVideoClassification"),
}  # fmt: skip


class Own(nn.Module):
    """Blocks of one's own between an embedding and a head on the mean or the first token."""

    def __init__(self, embed: nn.Module, blocks: nn.Module, width: int = 24, *, first: bool = False) -> None:
        super().__init__()
        self.embed, self.blocks, self.head, self.first = embed, blocks, nn.Linear(width, 5), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks.children() if isinstance(self.blocks, nn.ModuleList) else [self.blocks]:
            x = block(x)
        return self.head(x[:, 0] if self.first else x.mean(dim=1))


class Fused(nn.Module):
    """A pre-norm block around `scaled_dot_product_attention`."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Linear(40, width))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.attend(self.first(x)))
        return x + self.feed(self.second(x))


class ByHand(Fused):
    """The same, attention written out."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return (((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Letters(Fused):
    """The same, by einsum with letters of one's own and tokens before heads."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        weights = torch.einsum("nqhc,nkhc->nhqk", q, k).softmax(-1)
        return torch.einsum("nhqk,nkhc->nqhc", weights, v).flatten(2)


class PostNorm(Fused):
    """Norms after each sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.out(self.attend(x)))
        return self.second(x + self.feed(x))


class Parallel(Fused):
    """Attention and the feed-forward part side by side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.first(x)
        return x + self.out(self.attend(normed)) + self.feed(normed)


class WithMultihead(nn.Module):
    """A block around `nn.MultiheadAttention` whose queries and keys get positions of their own."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 3, batch_first=True)
        self.places = nn.Parameter(torch.randn(12, width))
        self.feed_norm, self.feed = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        z = y + self.places[: x.shape[1]]
        x = x + self.attention(z, y + self.places[: x.shape[1]], y, need_weights=False)[0]
        return x + self.feed(self.feed_norm(x))


class NoList(nn.Module):
    """Two blocks that are no list."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one, self.two, self.head = nn.Embedding(WORDS, 24), Fused(), PostNorm(), nn.Linear(24, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(self.embed(input_ids))).mean(dim=1))


class Repeated(nn.Module):
    """One block that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(WORDS, 24), Fused(), nn.Linear(24, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for _ in range(3):
            x = self.block(x)
        return self.head(x.mean(dim=1))


class Features(nn.Module):
    """One token for each number of a row of a table, and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(6, 24)), nn.Parameter(torch.randn(6, 24))
        self.start = nn.Parameter(torch.randn(1, 1, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[..., None] * self.scale + self.shift
        return torch.cat([self.start.expand(len(x), -1, -1), tokens], dim=1)


def blocks(*kinds: type[nn.Module]) -> nn.ModuleList:
    return nn.ModuleList([kind() for kind in kinds])


def encoder_of_torch(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def own(build: Callable[[], nn.Module], shown: str = "ids") -> Entry:
    return Entry(build, shown, "tabular and own", kind="own")


OWN = {
    "torch_encoder": own(lambda: Own(nn.Embedding(WORDS, 24), encoder_of_torch())),
    "torch_encoder_prenorm": own(lambda: Own(nn.Embedding(WORDS, 24), encoder_of_torch(norm_first=True))),
    "fused": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(Fused, Fused))),
    "by_hand": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(ByHand, ByHand), first=True)),
    "einsum": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(Letters, Letters))),
    "post_norm": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(PostNorm, PostNorm))),
    "parallel": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(Parallel, Parallel))),
    "multihead": own(lambda: Own(nn.Embedding(WORDS, 24), blocks(WithMultihead, WithMultihead))),
    "no_list": own(NoList),
    "repeated": own(Repeated),
    "table": own(lambda: Own(Features(), blocks(Fused, Fused), first=True), "table"),
    "series": own(lambda: Own(nn.Linear(3, 24), blocks(Fused, PostNorm)), "series"),
}


def adapted(change: Callable[[nn.Module], nn.Module], base: Entry, refused: str | None = None) -> Entry:
    return Entry(lambda: change(base.build()), base.shown, "adapted and quantised", refused, kind=base.kind)


def peft(kind: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def change(model: nn.Module) -> nn.Module:
        import peft

        made = peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **options))
        for name, x in made.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(x, std=0.1)
        return made

    return change


def int8(model: nn.Module) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


def dynamic(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def weight_normed(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.shape[0] == 32:
            torch.nn.utils.parametrizations.weight_norm(module)
    return model


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(requires_grad=False)


ADAPTED = {
    "lora": adapted(peft("LoraConfig", r=2, target_modules=["q_proj", "o_proj", "down_proj"]), DECODERS["gemma"]),
    "dora": adapted(peft("LoraConfig", r=2, use_dora=True, target_modules=["v_proj", "o_proj"]), DECODERS["olmo2"]),
    "ia3": adapted(peft("IA3Config", target_modules=["k_proj", "v_proj", "down_proj"],
                        feedforward_modules=["down_proj"]), DECODERS["stablelm"]),
    "prompt_tuning": adapted(peft("PromptTuningConfig", num_virtual_tokens=3), DECODERS["gemma"]),
    "weight_norm": adapted(weight_normed, ENCODERS["camembert"]),
    "frozen": adapted(frozen, DECODERS["gpt_neox"]),
    "compiled": adapted(torch.compile, ENCODERS["electra"]),
    "data_parallel": adapted(nn.DataParallel, VISION["ijepa"]),
    "int8_torchao": adapted(int8, ENCODERS["camembert"]),
    "int8_dynamic": adapted(dynamic, ENCODERS["camembert"], "8-bit kernels have no gradient|no gradient"),
    "bfloat16": adapted(lambda model: model.to(torch.bfloat16), DECODERS["cohere"]),
    "float16": adapted(lambda model: model.to(torch.float16), DECODERS["granite"]),
}  # fmt: skip
TABLE: dict[str, Entry] = {
    f"{part}/{name}": entry
    for part, entries in {
        "decoder": DECODERS, "encoder": ENCODERS, "vision": VISION, "timm": TIMM, "audio": AUDIOS, "video": VIDEOS,
        "own": OWN, "adapted": ADAPTED,
    }.items()
    for name, entry in entries.items()
}  # fmt: skip
