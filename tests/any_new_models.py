"""Models that came out lately, and the rarer ones of each library: mixtures, hybrids, documents, series, depth."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
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
    SHORT,
    SMALL,
    WORDS,
    Entry,
    audio,
    decoder,
    encoder,
    hf,
    timm_vit,
    vision,
)
from any_more_models import BART
from any_more_models import TABLE as OLDER
from torch import nn

from vitrail import targets

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
FULL = {"layer_types": ["full_attention", "full_attention"]}


def compared(entry: Entry) -> Entry:
    """An encoder without a head, explained by how alike its encodings and another vector are."""
    others = torch.randn(4, 32, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return replace(entry, asks=lambda index: targets.similarity(others[index]))


def asked(entry: Entry, choose: Callable[[torch.Tensor, int], torch.Tensor]) -> Entry:
    """A model whose answer is no row of classes: the user names the scalar."""
    return replace(entry, asks=lambda index: lambda answer: choose(answer, index))


def dinov2_backbone() -> Any:
    import transformers

    return transformers.Dinov2Config(
        **{**PICTURE, "num_hidden_layers": 4},
        reshape_hidden_states=False,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def vitpose_backbone() -> Any:
    import transformers

    return transformers.VitPoseBackboneConfig(
        **{**SHORT, "image_size": [32, 32], "patch_size": [8, 8]}, out_indices=[2]
    )


def timm_wrapper() -> nn.Module:
    import transformers

    config = transformers.TimmWrapperConfig(architecture="vit_tiny_patch16_224", model_args={**SMALL}, num_labels=5)
    return transformers.TimmWrapperForImageClassification(config)


DECODERS = {
    "aria_text": decoder(
        "AriaTextForCausalLM", **GROUPED, **EAGER_EXPERTS, moe_num_experts=3, moe_topk=2, moe_num_shared_experts=1
    ),
    "axk2": decoder("AXK2ForCausalLM", **MLA),
    "bailing_hybrid": decoder(
        "BailingHybridForCausalLM",
        attentions=False,
        refused="blocks of this model attend",
        **{**MLA, "head_dim": 8},
        num_local_experts=4,
        layer_types=["linear_attention", "full_attention"],
    ),
    "beam": decoder("BeamForCausalLM", **GROUPED),
    "bigbird_pegasus": decoder("BigBirdPegasusForCausalLM", **BART),
    "blenderbot_small": decoder("BlenderbotSmallForCausalLM", **BART),
    "emu3": decoder("Emu3ForCausalLM", **GROUPED),
    "falcon_mamba": decoder(
        "FalconMambaForCausalLM",
        attentions=False,
        refused="no attention was seen",
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        **MARKS,
    ),
    "flint": decoder("FlintForCausalLM", **GROUPED),
    "gemma4_unified": decoder("Gemma4UnifiedForCausalLM", **GROUPED, head_dim=8),
    "glm4_moe_lite": decoder("Glm4MoeLiteForCausalLM", **MLA),
    "glm_moe_dsa": decoder(
        "GlmMoeDsaForCausalLM", attentions=False, **MLA, index_topk=16, index_head_dim=8, index_n_heads=2
    ),
    "granitemoe_swa": decoder("GraniteMoeSWAForCausalLM", refused="mix tokens", **GROUPED, **ROUTED, sliding_window=4),
    "granitemoehybrid": decoder(
        "GraniteMoeHybridForCausalLM",
        refused="blocks of this model attend",
        attentions=False,
        **GROUPED,
        **ROUTED,
        **MAMBA,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=24,
    ),
    "granitemoehybrid_attention": decoder(
        "GraniteMoeHybridForCausalLM",
        **GROUPED,
        **ROUTED,
        **MAMBA,
        layer_types=["attention", "attention"],
        shared_intermediate_size=24,
    ),
    "hrm_text": decoder("HrmTextForCausalLM", refused="torch.no_grad inside", **GROUPED),
    "hy_v4": decoder(
        "HYV4ForCausalLM", attentions=False, **MLA, head_dim=8, index_topk=16, index_head_dim=8, index_n_heads=2
    ),
    "inkling_text": decoder(
        "InklingForCausalLM",
        refused="mix tokens",
        attentions=False,
        **GROUPED,
        **EAGER_EXPERTS,
        head_dim=8,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        d_rel=4,
        rel_extent=16,
        n_routed_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_shared_experts=1,
        logits_mup_width_multiplier=1.0,
    ),
    "kimi_linear": decoder(
        "KimiLinearForCausalLM",
        attentions=False,
        refused="blocks of this model attend",
        **MLA,
        num_local_experts=4,
        linear_head_dim=8,
        linear_num_heads=4,
        layer_types=["linear_attention", "full_attention"],
    ),
    "kolibri1": decoder(
        "Kolibri1ForCausalLM", **GROUPED, **EXPERTS, head_dim=8, sliding_window=4, shared_expert_intermediate_size=24
    ),
    "laguna": decoder("LagunaForCausalLM", **GROUPED, **EXPERTS, head_dim=8),
    "lfm2_moe": decoder("Lfm2MoeForCausalLM", **GROUPED, **EXPERTS, **FULL),
    "longcat_flash": decoder(
        "LongcatFlashForCausalLM",
        attentions=False,
        **{k: v for k, v in MLA.items() if k != "num_hidden_layers"},
        num_layers=2,
        head_dim=4,
        ffn_hidden_size=48,
        expert_ffn_hidden_size=24,
        moe_topk=2,
        zero_expert_num=2,
    ),
    "mamba2": decoder(
        "Mamba2ForCausalLM",
        attentions=False,
        refused="no attention was seen",
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        **MARKS,
    ),
    "minimax_m3": decoder("MiniMaxM3VLForCausalLM", **GROUPED, **ROUTED, head_dim=8),
    "mllama_text": decoder("MllamaForCausalLM", **GROUPED, cross_attention_layers=[]),
    "moshi": decoder("MoshiForCausalLM", **GROUPED),
    "mvp_decoder": decoder("MvpForCausalLM", **BART),
    "nemotron_h": decoder(
        "NemotronHForCausalLM",
        attentions=False,
        refused="blocks of this model attend",
        **{**GROUPED, "num_hidden_layers": 3},
        head_dim=8,
        ssm_state_size=8,
        mamba_num_heads=4,
        mamba_head_dim=8,
        n_groups=1,
        layers_block_type=["mamba", "attention", "moe"],
        n_routed_experts=2,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=24,
        **EAGER_EXPERTS,
    ),
    "nemotron_h_attention": decoder(
        "NemotronHForCausalLM",
        **{**GROUPED, "num_hidden_layers": 4},
        head_dim=8,
        ssm_state_size=8,
        mamba_num_heads=4,
        mamba_head_dim=8,
        n_groups=1,
        layers_block_type=["attention", "moe", "attention", "moe"],
        n_routed_experts=2,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=24,
        **EAGER_EXPERTS,
    ),
    "qwen3_5": decoder(
        "Qwen3_5ForCausalLM",
        refused="blocks of this model attend",
        attentions=False,
        **GROUPED,
        **LINEAR,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "qwen3_5_attention": decoder("Qwen3_5ForCausalLM", **GROUPED, **LINEAR, head_dim=8, **FULL),
    "qwen3_5_moe": decoder(
        "Qwen3_5MoeForCausalLM", **GROUPED, **EXPERTS, **LINEAR, head_dim=8, **FULL, shared_expert_intermediate_size=24
    ),
    "rwkv": decoder(
        "RwkvForCausalLM",
        attentions=False,
        refused="weights of the model were changed|no attention",
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        attention_hidden_size=32,
        context_length=64,
    ),
    "zamba2": decoder(
        "Zamba2ForCausalLM",
        attentions=False,
        refused="mix tokens",
        **{**GROUPED, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid"],
        use_mamba_kernels=False,
        mamba_d_state=4,
        n_mamba_heads=4,
    ),
    "zaya": decoder(
        "ZayaForCausalLM",
        attentions=False,
        refused=".",
        **GROUPED,
        **{**EXPERTS, "num_experts_per_tok": 1},
        head_dim=8,
        router_hidden_size=8,
    ),
    "cpmant": decoder(
        "CpmAntForCausalLM",
        refused="is not known",
        attentions=False,
        vocab_size=WORDS,
        hidden_size=32,
        num_attention_heads=4,
        dim_head=8,
        dim_ff=48,
        num_hidden_layers=2,
        prompt_length=4,
    ),
    "gemma2_classes": decoder(
        "Gemma2ForSequenceClassification",
        **GROUPED,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=4,
        num_labels=3,
    ),
    "gpt_oss_classes": decoder("GptOssForSequenceClassification", **GROUPED, **ROUTED, head_dim=8, num_labels=3),
    "mixtral_tokens": encoder("MixtralForTokenClassification", position=3, **GROUPED, **ROUTED),
    "phi3_classes": decoder("Phi3ForSequenceClassification", **GROUPED, num_labels=3),
}
ENCODERS = {
    "layoutlmv3": encoder(
        "LayoutLMv3ForSequenceClassification", **BERT, visual_embed=False, coordinate_size=5, shape_size=6
    ),
    "lilt": encoder(
        "LiltForSequenceClassification",
        attentions=False,
        refused="queries and keys cannot be told",
        **{**BERT, "hidden_size": 48},
        channel_shrink_ratio=2,
    ),
    "mt5_tokens": encoder(
        "MT5ForTokenClassification",
        position=3,
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
    ),
    "t5gemma_tokens": encoder(
        "T5GemmaForTokenClassification",
        position=3,
        is_encoder_decoder=False,
        encoder={**GROUPED, "head_dim": 8},
        decoder={**GROUPED, "head_dim": 8},
    ),
    "umt5_tokens": encoder(
        "UMT5ForTokenClassification",
        position=3,
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
    ),
    "big_bird_sparse": replace(
        encoder(
            "BigBirdForSequenceClassification",
            attentions=False,
            refused="queries and keys cannot be told",
            **BERT,
            block_size=2,
            num_random_blocks=1,
        ),
        options=(("length", 32),),
    ),
    "bert_next_sentence": replace(encoder("BertForNextSentencePrediction", **BERT), single=True),
    "mobilebert_masked": encoder(
        "MobileBertForMaskedLM",
        position=3,
        refused="is not known",
        **BERT,
        embedding_size=32,
        true_hidden_size=16,
        intra_bottleneck_size=16,
    ),
    "esm_masked": encoder("EsmForMaskedLM", position=3, **BERT, position_embedding_type="absolute", mask_token_id=3),
    "longformer_tokens": encoder(
        "LongformerForTokenClassification",
        position=3,
        attentions=False,
        refused="no attention was seen",
        **BERT,
        attention_window=4,
    ),
    "deberta_tokens": encoder(
        "DebertaV2ForTokenClassification",
        position=3,
        **BERT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=16,
    ),
    "deberta_conv": encoder(
        "DebertaV2ForSequenceClassification",
        **BERT,
        relative_attention=True,
        refused="mix tokens",
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=16,
        conv_kernel_size=3,
    ),
    "eurobert_masked": encoder("EuroBertForMaskedLM", position=3, **BERT),
    "xlnet_tokens": encoder(
        "XLNetForTokenClassification",
        position=3,
        attentions=False,
        vocab_size=WORDS,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=48,
    ),
    "neomme": encoder("NeoMMEForMaskedLM", refused="mix tokens", position=3, **BERT),
}

VISION = {
    "bit": vision(
        "BitForImageClassification",
        attentions=False,
        refused="no attention was seen",
        hidden_sizes=[8, 16],
        depths=[1, 1],
        embedding_size=8,
        num_groups=4,
    ),
    "convnext": vision(
        "ConvNextForImageClassification",
        attentions=False,
        refused="no attention was seen",
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_stages=2,
    ),
    "swiftformer": vision(
        "SwiftFormerForImageClassification",
        attentions=False,
        refused="no attention was seen",
        image_size=32,
        depths=[1, 1],
        embed_dims=[16, 32],
        layer_depths=[1, 1],
    ),
    "segformer": vision(
        "SegformerForImageClassification",
        refused="feed more than one",
        attentions=False,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
    ),
    "swin": vision(
        "SwinForImageClassification",
        attentions=False,
        image_size=32,
        patch_size=4,
        embed_dim=8,
        depths=[2, 1],
        num_heads=[2, 2],
        window_size=4,
    ),
    "pvt_v2": vision(
        "PvtV2ForImageClassification",
        refused="feed more than one",
        attentions=False,
        image_size=32,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        out_features=None,
    ),
    "hiera": vision(
        "HieraForImageClassification",
        attentions=False,
        image_size=[32, 32],
        patch_size=[7, 7],
        patch_stride=[4, 4],
        patch_padding=[3, 3],
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        num_query_pool=1,
        query_stride=[2, 2],
        masked_unit_size=[4, 4],
        masked_unit_attention=[True, False],
        mlp_ratio=2.0,
    ),
    "depth_anything": replace(
        asked(
            vision(
                "DepthAnythingForDepthEstimation",
                attentions=False,
                patch_size=8,
                backbone_config=dinov2_backbone(),
                reassemble_hidden_size=32,
                fusion_hidden_size=8,
                neck_hidden_sizes=[8, 8, 8, 8],
                head_hidden_size=4,
            ),
            lambda depth, i: depth[:, i:].mean(dim=(1, 2)),
        ),
        single=True,  # depth has no classes
    ),
    "dpt_segments": asked(
        vision(
            "DPTForSemanticSegmentation",
            attentions=False,
            **{**PICTURE, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 8, 8],
            fusion_hidden_size=8,
        ),
        lambda logits, i: logits[:, i].sum(dim=(1, 2)),  # the mean is of the size of rounding
    ),
    "glpn": asked(
        vision(
            "GLPNForDepthEstimation",
            attentions=False,
            refused="feed more than one",
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 8, 16, 16],
            num_attention_heads=[1, 1, 2, 2],
            decoder_hidden_size=8,
        ),
        lambda depth, i: depth[:, i, 3],
    ),
    "vitpose": asked(
        vision("VitPoseForPoseEstimation", attentions=False, backbone_config=vitpose_backbone()),
        lambda heatmaps, i: heatmaps[:, i, 2, 3],
    ),
    "eomt": asked(
        vision(
            "EomtForUniversalSegmentation",
            attentions=False,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            mlp_ratio=2,
            image_size=32,
            patch_size=8,
            num_blocks=1,
            num_queries=3,
            num_register_tokens=2,
        ),
        lambda classes, i: classes[:, 0, i],
    ),
    "beit_segments": asked(
        vision(
            "BeitForSemanticSegmentation",
            attentions=False,
            **{**PICTURE, "num_hidden_layers": 4},
            out_indices=[1, 2, 3, 4],
            pool_scales=[1, 2],
            auxiliary_channels=8,
        ),
        lambda logits, i: logits[:, i, 3, 5],
    ),
    "segformer_segments": asked(
        vision(
            "SegformerForSemanticSegmentation",
            attentions=False,
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
            refused="feed more than one",
            decoder_hidden_size=16,
        ),
        lambda logits, i: logits[:, i, 3, 5],
    ),
    "dinov3": compared(vision("DINOv3ViTModel", attentions=False, **PICTURE, num_register_tokens=2)),
    "pixio": compared(vision("PixioModel", attentions=False, **PICTURE)),
    "aimv2": compared(vision("Aimv2VisionModel", attentions=False, **PICTURE)),
    "mlcd": compared(vision("MLCDVisionModel", attentions=False, **PICTURE)),
    "timm_wrapper": Entry(timm_wrapper, "image", "vision", kind="TimmWrapperForImageClassification"),
}
TIMM = {
    "swin": timm_vit(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 2)
    ),
    "swinv2_cr": timm_vit(
        "swinv2_cr_tiny_224", img_size=32, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 2)
    ),
    "twins_svt": timm_vit(
        "twins_svt_small",
        refused="feed more than one",
        size=64,
        img_size=64,
        depths=(1, 1, 1, 1),
        embed_dims=(8, 8, 8, 8),
        num_heads=(1, 1, 1, 1),
    ),
    "twins_pcpvt": timm_vit(
        "twins_pcpvt_small",
        refused="feed more than one",
        size=64,
        img_size=64,
        depths=(1, 1, 1, 1),
        embed_dims=(8, 8, 8, 8),
        num_heads=(1, 1, 1, 1),
    ),
    "efficientformerv2": timm_vit(
        "efficientformerv2_s0",
        refused="changed after its softmax",
        size=64,
        img_size=64,
        depths=(1, 1, 1, 2),
        embed_dims=(8, 8, 16, 16),
    ),
    "edgenext": timm_vit(
        "edgenext_xx_small", refused="feed more than one", size=64, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)
    ),
    "fastvit": timm_vit("fastvit_sa12", size=64, layers=(1, 1, 1, 1), embed_dims=(8, 8, 16, 32)),
    "hiera": timm_vit("hiera_tiny_224", size=64, img_size=(64, 64), embed_dim=8, num_heads=1, stages=(1, 1, 1, 1)),
    "tiny_vit": timm_vit(
        "tiny_vit_5m_224",
        refused="feed more than one",
        size=64,
        embed_dims=(8, 8, 16, 16),
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 2, 2),
        window_sizes=(4, 4, 4, 2),
    ),
    "efficientvit": timm_vit("efficientvit_b0", refused="no attention was seen", size=64),
    "visformer": timm_vit("visformer_tiny", size=64, img_size=64, embed_dim=16, depth=(1, 1, 1), num_heads=2),
    "vit_dpwee": timm_vit("vit_dpwee_patch16_reg1_gap_256", refused="in no block", **SMALL),
    "vit_pe_spatial": timm_vit("vit_pe_spatial_tiny_patch16_512", **SMALL),
    "vit_pe_lang": timm_vit("vit_pe_lang_large_patch14_448", **SMALL),
    "vit_7b_dinov3": timm_vit("vit_7b_patch16_dinov3", **SMALL),
    "vit_siglip2": timm_vit("vit_base_patch16_siglip_gap_256", **SMALL),
    "deit3_large": timm_vit("deit3_large_patch16_384", **SMALL),
}
PARAKEET = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_mel_bins": 16,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 3,
}
SPECTRUM = (("name", "input_features"), ("shape", (32, 16)))
AUDIOS = {
    "sew_d_ctc": replace(audio("SEWDForCTC", attentions=False, **AUDIO, squeeze_factor=1), position=3),
    "hubert_ctc": replace(audio("HubertForCTC", attentions=False, **AUDIO), position=3),
    "wavlm_xvector": audio(
        "WavLMForXVector",
        attentions=False,
        **AUDIO,
        xvector_output_dim=8,
        tdnn_dim=(8, 8),
        tdnn_kernel=(3, 1),
        tdnn_dilation=(1, 1),
    ),
    "wavlm_frames": replace(audio("WavLMForAudioFrameClassification", attentions=False, **AUDIO), position=3),
    "data2vec_ctc": replace(audio("Data2VecAudioForCTC", attentions=False, **AUDIO), position=3),
    "unispeech_ctc": replace(audio("UniSpeechForCTC", attentions=False, **AUDIO), position=3),
    "parakeet": replace(
        audio(
            "ParakeetForCTC",
            attentions=False,
            shown="spectrum",
            options=SPECTRUM,
            encoder_config=PARAKEET,
            vocab_size=20,
            pad_token_id=19,
        ),
        position=1,
        refused=".",
    ),
    "lasr": replace(
        audio(
            "LasrForCTC", attentions=False, shown="spectrum", options=SPECTRUM, encoder_config=PARAKEET, vocab_size=20
        ),
        position=1,
        refused=".",
    ),
}
PATCHTST = {
    "num_input_channels": 2,
    "context_length": 24,
    "patch_length": 6,
    "patch_stride": 6,
    "num_hidden_layers": 2,
    "d_model": 16,
    "ffn_dim": 24,
    "num_attention_heads": 2,
    "num_targets": 4,
}


def series(name: str, *, refused: str | None = None, **options: Any) -> Entry:
    return Entry(hf(name, **options), "values", "series", refused, kind=name)


SERIES = {
    "patchtst": series("PatchTSTForClassification", **PATCHTST),
    "patchtst_cls": series("PatchTSTForClassification", **PATCHTST, use_cls_token=True, norm_type="layernorm"),
    "patchtst_channels": series("PatchTSTForClassification", **PATCHTST, channel_attention=True),
    "patchtst_regression": series("PatchTSTForRegression", **PATCHTST),
    "patchtst_prediction": asked(
        series("PatchTSTForPrediction", **PATCHTST, prediction_length=4), lambda forecast, i: forecast[:, i, 0]
    ),
    "patchtsmixer": series(
        "PatchTSMixerForTimeSeriesClassification",
        refused="no attention was seen",
        num_input_channels=2,
        context_length=24,
        patch_length=6,
        patch_stride=6,
        d_model=16,
        num_layers=2,
        num_targets=4,
    ),
    "patchtsmixer_attention": series(
        "PatchTSMixerForTimeSeriesClassification",
        refused="changed after its softmax",
        num_input_channels=2,
        context_length=24,
        patch_length=6,
        patch_stride=6,
        d_model=16,
        num_layers=2,
        num_targets=4,
        self_attn=True,
    ),
}
VIDEOS = {
    "videoprism": Entry(
        hf(
            "VideoPrismForVideoClassification",
            **SHORT,
            image_size=16,
            num_frames=4,
            tubelet_size=[1, 8, 8],
            num_spatial_layers=1,
            num_temporal_layers=1,
            num_auxiliary_layers=1,
            num_labels=4,
        ),
        "video",
        "video",
        "another order",
        options=(("name", "pixel_values_videos"),),
        kind="VideoPrismForVideoClassification",
        position=0,
    ),
}
NEW: dict[str, Entry] = {
    f"{part}/{name}": entry
    for part, entries in {
        "decoder": DECODERS,
        "encoder": ENCODERS,
        "vision": VISION,
        "timm": TIMM,
        "audio": AUDIOS,
        "video": VIDEOS,
        "series": SERIES,
    }.items()
    for name, entry in entries.items()
}
TABLE: dict[str, Entry] = {**OLDER, **NEW}
