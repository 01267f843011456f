"""More tiny unmodified models: further heads, further libraries, further ways to write attention."""

from dataclasses import replace

from any_models import (
    AUDIO,
    BERT,
    EAGER_EXPERTS,
    EXPERTS,
    GROUPED,
    MARKS,
    MLA,
    PICTURE,
    ROUTED,
    SMALL,
    TEXT,
    WORDS,
    Entry,
    audio,
    decoder,
    encoder,
    hf,
    timm_vit,
    vision,
)  # fmt: skip
from any_models import TABLE as FIRST
from any_own_models import OWN
from torch import nn

BART = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, **MARKS,
}  # fmt: skip
DECODERS = {
    "gpt_neox_japanese": decoder("GPTNeoXJapaneseForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
                                 num_attention_heads=4, intermediate_multiple_size=2, max_position_embeddings=64,
                                 **MARKS),
    "dbrx": decoder("DbrxForCausalLM", vocab_size=WORDS, d_model=32, n_heads=4, n_layers=2, max_seq_len=64,
                    attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
                    ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 3, "moe_top_k": 2, "hidden_size": 32},
                    **EAGER_EXPERTS),
    "dots1": decoder("Dots1ForCausalLM", **GROUPED, **EXPERTS, n_routed_experts=4, n_group=2, topk_group=1,
                     first_k_dense_replace=1, n_shared_experts=1, head_dim=8),
    "glm4_moe": decoder("Glm4MoeForCausalLM", **GROUPED, **EAGER_EXPERTS, n_routed_experts=4, n_group=1, topk_group=1,
                        num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1, head_dim=8),
    "minimax": decoder("MiniMaxForCausalLM", **GROUPED, **ROUTED, head_dim=8,
                       layer_types=["full_attention", "full_attention"]),
    "minimax_hybrid": decoder("MiniMaxForCausalLM", attentions=False, refused=".", **GROUPED, **ROUTED, head_dim=8,
                              layer_types=["linear_attention", "full_attention"], block_size=4),
    "minimax_m2": decoder("MiniMaxM2ForCausalLM", **GROUPED, **ROUTED, head_dim=8),
    "llama4": decoder("Llama4ForCausalLM", **GROUPED, **EAGER_EXPERTS, num_local_experts=2, num_experts_per_tok=1,
                      intermediate_size_mlp=48, head_dim=8, attention_chunk_size=32),
    "doge": decoder("DogeForCausalLM", **GROUPED, keep_window_size=64),
    "hunyuan": decoder("HunYuanDenseV1ForCausalLM", **GROUPED, head_dim=8),
    "hunyuan_moe": decoder("HunYuanMoEV1ForCausalLM", **GROUPED, **EAGER_EXPERTS, num_experts=3, moe_topk=2,
                           head_dim=8),
    "ernie4_5_moe": decoder("Ernie4_5_MoeForCausalLM", **GROUPED, **EAGER_EXPERTS, moe_num_experts=3, moe_k=2,
                            moe_intermediate_size=24, moe_num_shared_experts=1),
    "flex_olmo": decoder("FlexOlmoForCausalLM", **GROUPED, **EAGER_EXPERTS, num_experts=3, num_experts_per_tok=2),
    "granitemoe_shared": decoder("GraniteMoeSharedForCausalLM", **GROUPED, **ROUTED, shared_intermediate_size=24),
    "lfm2": decoder("Lfm2ForCausalLM", attentions=False, refused=".", **GROUPED,
                    layer_types=["conv", "full_attention"]),
    "lfm2_attention": decoder("Lfm2ForCausalLM", **GROUPED, layer_types=["full_attention", "full_attention"]),
    "nanochat": decoder("NanoChatForCausalLM", **GROUPED),
    "vaultgemma": decoder("VaultGemmaForCausalLM", **GROUPED, head_dim=8, query_pre_attn_scalar=8),
    "gemma3_classes": encoder("Gemma3TextForSequenceClassification", **GROUPED, head_dim=8, query_pre_attn_scalar=8),
    "gemma4": decoder("Gemma4ForCausalLM", **GROUPED, head_dim=8),
    "modernbert_decoder": decoder("ModernBertDecoderForCausalLM", **TEXT, cls_token_id=1, sep_token_id=2, **MARKS),
    "qwen3_next": decoder("Qwen3NextForCausalLM", attentions=False, refused=".", **GROUPED, **EXPERTS, head_dim=8,
                          layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                          linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
                          shared_expert_intermediate_size=24),
    "qwen3_next_attention": decoder("Qwen3NextForCausalLM", **GROUPED, **EXPERTS, head_dim=8,
                                    layer_types=["full_attention", "full_attention"],
                                    shared_expert_intermediate_size=24),
    "bart_decoder": decoder("BartForCausalLM", **BART, is_decoder=True),
    "marian_decoder": decoder("MarianForCausalLM", **BART, decoder_vocab_size=WORDS),
    "pegasus_decoder": decoder("PegasusForCausalLM", **BART),
    "mbart_decoder": decoder("MBartForCausalLM", **BART),
    "blenderbot_decoder": decoder("BlenderbotForCausalLM", **BART),
    "bert_lm": decoder("BertLMHeadModel", **BERT, is_decoder=True),
    "roberta_lm": decoder("RobertaForCausalLM", **BERT, is_decoder=True),
    "llama_reward": replace(encoder("LlamaForSequenceClassification", **{**GROUPED, "num_labels": 1}), single=True),
    "qwen3_tokens": encoder("Qwen3ForTokenClassification", position=3, **GROUPED, head_dim=8),
    "cwm": decoder("CwmForCausalLM", **GROUPED, head_dim=8, sliding_window=4),
    "jais2": decoder("Jais2ForCausalLM", **GROUPED, head_dim=8),
    "ministral": decoder("MinistralForCausalLM", **GROUPED, head_dim=8, sliding_window=4),
    "mistral4": decoder("Mistral4ForCausalLM", **MLA),
    "youtu": decoder("YoutuForCausalLM", **MLA),
    "deepseek_v32": decoder("DeepseekV32ForCausalLM", attentions=False, **MLA, index_topk=4, index_head_dim=8,
                            index_n_heads=2),
    "axk1": decoder("AXK1ForCausalLM", **MLA),
    "minicpm3": decoder("MiniCPM3ForCausalLM", **MLA),
    "afmoe": decoder("AfmoeForCausalLM", **GROUPED, **EXPERTS, head_dim=8, sliding_window=4, num_dense_layers=1),
    "mimo": decoder("MiMoV2FlashForCausalLM", **GROUPED, **EXPERTS, head_dim=8, v_head_dim=8, sliding_window=4,
                    n_routed_experts=3),
    "solar_open": decoder("SolarOpenForCausalLM", **GROUPED, **EXPERTS, n_routed_experts=4, head_dim=8),
    "hyv3": decoder("HYV3ForCausalLM", **GROUPED, **EXPERTS, head_dim=8),
    "mellum": decoder("MellumForCausalLM", **GROUPED, **EXPERTS, head_dim=8, sliding_window=4),
    "hyperclovax": decoder("HyperCLOVAXForCausalLM", **GROUPED),
    "granite_swa": decoder("GraniteSWAForCausalLM", refused="mix tokens", **GROUPED, sliding_window=4),
    "exaone_moe": decoder("ExaoneMoeForCausalLM", **GROUPED, **EXPERTS, head_dim=8, sliding_window=4),
    "cohere2_moe": decoder("Cohere2MoeForCausalLM", **GROUPED, **EXPERTS, head_dim=8, sliding_window=4),
    "openai_privacy": encoder("OpenAIPrivacyFilterForTokenClassification", position=3, **GROUPED, **ROUTED,
                              head_dim=8, sliding_window=4),
    "olmo_hybrid": decoder("OlmoHybridForCausalLM", attentions=False, refused=".", **GROUPED),
}  # fmt: skip
ENCODERS = {
    "nomic_bert": encoder("NomicBertForSequenceClassification", **BERT),
    "nomic_bert_masked": encoder("NomicBertForMaskedLM", position=3, **BERT),
    "gte": encoder("GteForSequenceClassification", **BERT),
    "eurobert": encoder("EuroBertForSequenceClassification", **BERT),
    "esmc": encoder("EsmcForSequenceClassification", **BERT),
    "jina_v3": encoder("JinaEmbeddingsV3ForSequenceClassification", **BERT),
    "ultrabert": encoder("UltrabertForSequenceClassification", **BERT),
    "xlm_roberta": encoder("XLMRobertaForSequenceClassification", **BERT),
    "roc_bert": encoder("RoCBertForSequenceClassification", **BERT, pronunciation_vocab_size=WORDS,
                        shape_vocab_size=WORDS, pronunciation_embed_dim=8, shape_embed_dim=8),
    "luke": encoder("LukeForSequenceClassification", **BERT, entity_vocab_size=8, entity_emb_size=32),
    "yoso": encoder("YosoForSequenceClassification", attentions=False, refused=".", **BERT),
    "reformer": encoder("ReformerForSequenceClassification", attentions=False, refused=".", vocab_size=WORDS,
                        hidden_size=32, num_attention_heads=4, attention_head_size=8, feed_forward_size=48,
                        axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], attn_layers=["local"], is_decoder=False,
                        local_attn_chunk_length=4, num_hidden_layers=1),
    "bert_masked": encoder("BertForMaskedLM", position=3, **BERT),
    "bert_tokens": encoder("BertForTokenClassification", position=3, **BERT),
    "roberta_masked": encoder("RobertaForMaskedLM", position=3, **BERT),
    "distilbert_masked": encoder("DistilBertForMaskedLM", position=3, vocab_size=WORDS, dim=32, hidden_dim=48,
                                 n_layers=2,
                          n_heads=4, max_position_embeddings=64),
    "albert_masked": encoder("AlbertForMaskedLM", position=3, **BERT, embedding_size=16),
    "electra_discriminator": encoder("ElectraForPreTraining", **BERT, embedding_size=16),
    "modernbert_masked": encoder("ModernBertForMaskedLM", position=3, **BERT, cls_token_id=1, sep_token_id=2, **MARKS),
    "bert_regression": replace(encoder("BertForSequenceClassification", **{**BERT, "num_labels": 1}), single=True),
}  # fmt: skip
VISION = {
    "metaclip2": vision("MetaClip2ForImageClassification", vision_config=PICTURE),
    "imagegpt": Entry(hf("ImageGPTForImageClassification", num_labels=5, vocab_size=WORDS, n_positions=64, n_embd=32,
                         n_layer=2, n_head=4), "text", "vision", None, attentions=True, kind="ImageGPT"),
    "deit_teacher": vision("DeiTForImageClassificationWithTeacher", **PICTURE),
}  # fmt: skip


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(32, 8, 2, 3, 24, 40, num_classes=5)


VISION |= {"torchvision_vit": Entry(torchvision_vit, "pixels", "vision", kind="torchvision VisionTransformer")}
TIMM = {
    "cait": timm_vit("cait_xxs24_224", refused="changed after its softmax", **SMALL),
    "pit": timm_vit("pit_ti_224", refused="feed more than one", size=64, img_size=64,
                    depth=[1, 1, 1], heads=[2, 2, 2], base_dims=[8, 8, 8]),
    "deit3_medium": timm_vit("deit3_medium_patch16_224", **SMALL),
    "vit_xp": timm_vit("vit_little_patch16_reg1_gap_256", **SMALL),
    "vit_mediumd": timm_vit("vit_mediumd_patch16_reg4_gap_256", **SMALL),
    "vit_so400m": timm_vit("vit_so400m_patch14_siglip_224", **SMALL),
    "vit_intern": timm_vit("vit_intern300m_patch14_448", **SMALL),
    "vit_ijepa": timm_vit("vit_huge_patch14_gap_224", **SMALL),
    "vit_xxs_aimv2": timm_vit("aimv2_large_patch14_224", **SMALL),
    "naflex_map": timm_vit("naflexvit_so400m_patch16_siglip", img_size=32, patch_size=8, embed_dim=24, depth=2,
                           num_heads=3),
    "test_vit": timm_vit("test_vit", size=32, img_size=32),
    "beit3": timm_vit("beit3_base_patch16_224", **SMALL),
    "eva02_clip": timm_vit("eva02_base_patch16_clip_224", **SMALL),
    "mixer": timm_vit("mixer_s32_224", refused="no attention was seen", img_size=32),
    "resnet18": timm_vit("resnet18", refused="no attention was seen"),
}  # fmt: skip
AUDIOS = {
    "wav2vec2_bert": replace(audio("Wav2Vec2BertForSequenceClassification", attentions=False, shown="spectrum",
                           num_labels=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                           intermediate_size=48,
                           feature_projection_input_dim=16, classifier_proj_size=8, conv_depthwise_kernel_size=3,
                           options=(("name", "input_features"), ("shape", (12, 16)))), refused="feed more than one"),
    "wav2vec2_conformer": replace(audio("Wav2Vec2ConformerForSequenceClassification", attentions=False, **AUDIO,
                                conv_depthwise_kernel_size=3), refused="mix tokens"),
    "wav2vec2_ctc": replace(audio("Wav2Vec2ForCTC", attentions=False, **AUDIO), position=3),
    "sewd": audio("SEWDForSequenceClassification", attentions=False, **AUDIO, squeeze_factor=1),
    "wav2vec2_stable": audio("Wav2Vec2ForSequenceClassification", **AUDIO, do_stable_layer_norm=True,
                             feat_extract_norm="layer"),
    "wav2vec2_weighted": audio("Wav2Vec2ForSequenceClassification", **AUDIO, use_weighted_layer_sum=True),
    "wav2vec2_frames": replace(audio("Wav2Vec2ForAudioFrameClassification", attentions=False, **AUDIO), position=3),
}  # fmt: skip
MORE: dict[str, Entry] = {
    f"{part}/{name}": entry
    for part, entries in {
        "decoder": DECODERS, "encoder": ENCODERS, "vision": VISION, "timm": TIMM, "audio": AUDIOS, "own": OWN,
    }.items()
    for name, entry in entries.items()
}  # fmt: skip
TABLE: dict[str, Entry] = {**FIRST, **MORE}
