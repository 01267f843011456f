"""Tiny unmodified models with several streams of tokens, or whose tokens change between blocks, and their inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from any_models import hf, noise, timm
from torch import nn

from vitrail import targets

WORDS = 40
IMAGE_TOKEN = 39
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
    **MARKS,
    "decoder_start_token_id": 1,
}
T5 = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
BERT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
SHORT = {name: BERT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
VISION = {**SHORT, "image_size": 24, "patch_size": 6}
LLAMA = {**SHORT, "vocab_size": WORDS, "num_key_value_heads": 1, **MARKS}
MODEL = {"model_type": "llama", **LLAMA}
CLIP_VISION = {"model_type": "clip_vision_model", **VISION, "num_hidden_layers": 3}
SIGLIP_VISION = {"model_type": "siglip_vision_model", **VISION}


@dataclass(frozen=True)
class Case:
    """A model of the table.

    Args:
        build: makes the model.
        inputs: makes inputs for a number of samples.
        group: the part of the table it stands in.
        target: what is explained.
        streams: the streams that are shown, by name, with the number of tokens or the grid of each.
        refused: words of the error of methods that read attention, where the model cannot be followed.
        double: whether it runs in float64; some models make float32 numbers on the way.
    """

    build: Callable[..., nn.Module]
    inputs: Callable[[int], Any]
    group: str
    target: Any = 3
    streams: tuple[tuple[str, Any], ...] = ()
    refused: str | None = None
    double: bool = True


def ids(batch: int, length: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(4, WORDS - 4, (batch, length), generator=torch.Generator().manual_seed(seed))


def source_and_answer(batch: int, source: int = 9, answer: int = 6) -> dict[str, torch.Tensor]:
    words = ids(batch, source)
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "decoder_input_ids": ids(batch, answer, 5)}


def with_picture(batch: int, patches: int = 16, *, size: int = 24, token: int = IMAGE_TOKEN, **more: Any) -> dict:
    words = torch.cat([torch.full((batch, 2), 3), torch.full((batch, patches), token), ids(batch, 4)], dim=1)
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "pixel_values": noise(batch, 3, size, size),
        **more,
    }


def seq2seq(name: str, **options: Any) -> Case:
    return Case(
        hf(name, **options),
        source_and_answer,
        "encoder-decoder",
        targets.logit(7, position=4),
        (("encoder", 9), ("decoder", 6)),
    )


class Translator(nn.Module):
    """An `nn.Transformer` between embeddings and a head."""

    def __init__(self, *, batch_first: bool, norm_first: bool = False) -> None:
        super().__init__()
        self.first = batch_first
        self.embed, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.body = nn.Transformer(16, 2, 2, 2, 24, batch_first=batch_first, norm_first=norm_first)

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        source, answer = self.embed(input_ids), self.embed(decoder_input_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(answer.shape[1], dtype=source.dtype)
        if self.first:
            return self.head(self.body(source, answer, tgt_mask=mask))
        return self.head(self.body(source.transpose(0, 1), answer.transpose(0, 1), tgt_mask=mask).transpose(0, 1))


def plain_pair(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": ids(batch, 9), "decoder_input_ids": ids(batch, 6, 5)}


def encoder_decoder() -> nn.Module:
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**BERT), transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.EncoderDecoderModel(config)


def vision_encoder_decoder() -> nn.Module:
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**VISION),
        transformers.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=32, add_cross_attention=True, **MARKS
        ),
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.VisionEncoderDecoderModel(config)


SOUND = {
    "conv_dim": (16, 16),
    "conv_kernel": (5, 3),
    "conv_stride": (4, 2),
    **SHORT,
    "vocab_size": 20,
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def speech_encoder_decoder() -> nn.Module:
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.Wav2Vec2Config(**SOUND), transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.SpeechEncoderDecoderModel(config)


NEXT = targets.logit(7, position=4)
ENCODER_DECODERS = {
    "t5": seq2seq("T5ForConditionalGeneration", **T5),
    "t5_gated": seq2seq("T5ForConditionalGeneration", **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "umt5": seq2seq("UMT5ForConditionalGeneration", **T5),
    "bart": seq2seq("BartForConditionalGeneration", **SEQ2SEQ),
    "marian": seq2seq("MarianMTModel", **SEQ2SEQ),
    "m2m100": seq2seq("M2M100ForConditionalGeneration", **SEQ2SEQ),
    "mbart": seq2seq("MBartForConditionalGeneration", **SEQ2SEQ),
    "pegasus": seq2seq("PegasusForConditionalGeneration", **SEQ2SEQ),
    "blenderbot": seq2seq("BlenderbotForConditionalGeneration", **SEQ2SEQ),
    "plbart": seq2seq("PLBartForConditionalGeneration", **SEQ2SEQ),
    "led": Case(
        hf(
            "LEDForConditionalGeneration",
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=32,
            attention_window=4,
        ),
        lambda batch: source_and_answer(batch, 16),
        "encoder-decoder",
        NEXT,
        refused="asks for the tokens of input_ids",
    ),
    "switch": seq2seq(
        "SwitchTransformersForConditionalGeneration",
        **T5,
        num_experts=2,
        expert_capacity=64,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
    ),
    "bert2bert": Case(encoder_decoder, source_and_answer, "encoder-decoder", NEXT, (("encoder", 9), ("decoder", 6))),
    "nn_transformer": Case(
        lambda: Translator(batch_first=True), plain_pair, "encoder-decoder", NEXT, (("encoder", 9), ("decoder", 6))
    ),
    "nn_transformer_pre": Case(
        lambda: Translator(batch_first=True, norm_first=True),
        plain_pair,
        "encoder-decoder",
        NEXT,
        (("encoder", 9), ("decoder", 6)),
    ),
    "nn_transformer_time_first": Case(
        lambda: Translator(batch_first=False), plain_pair, "encoder-decoder", NEXT, (("encoder", 9), ("decoder", 6))
    ),
    "captioner": Case(
        vision_encoder_decoder,
        lambda b: {"pixel_values": noise(b, 3, 24, 24), "decoder_input_ids": ids(b, 6)},
        "encoder-decoder",
        NEXT,
        (("encoder", (4, 4)), ("decoder", 6)),
    ),
    "whisper": Case(
        hf(
            "WhisperForConditionalGeneration",
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=32,
        ),
        lambda b: {"input_features": noise(b, 8, 20), "decoder_input_ids": ids(b, 6)},
        "encoder-decoder",
        NEXT,
        (("encoder", 10), ("decoder", 6)),
    ),
    "speech2text": Case(
        hf(
            "Speech2TextForConditionalGeneration",
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            input_feat_per_channel=8,
            conv_channels=16,
            num_conv_layers=2,
            max_source_positions=40,
            max_target_positions=32,
        ),
        lambda b: {"input_features": noise(b, 20, 8), "decoder_input_ids": ids(b, 6)},
        "encoder-decoder",
        NEXT,
        (("encoder", 5), ("decoder", 6)),
    ),
    "speech_bert": Case(
        speech_encoder_decoder,
        lambda b: {"input_values": noise(b, 200), "decoder_input_ids": ids(b, 6)},
        "encoder-decoder",
        NEXT,
        (("encoder", 24), ("decoder", 6)),
    ),
    "pix2struct": Case(
        lambda: transformers.Pix2StructForConditionalGeneration(
            transformers.Pix2StructConfig(
                vision_config={**SHORT, "d_ff": 24, "d_kv": 8, "patch_embed_hidden_size": 12, "seq_len": 17},
                text_config={
                    "vocab_size": WORDS,
                    "hidden_size": 16,
                    "d_kv": 8,
                    "d_ff": 24,
                    "num_layers": 2,
                    "num_heads": 2,
                    "decoder_start_token_id": 0,
                },
            )
        ),
        lambda b: {
            "flattened_patches": torch.cat(
                [torch.arange(1, 17).view(1, 16, 1).expand(b, -1, 2).double(), noise(b, 16, 12)], dim=2
            ),
            "decoder_input_ids": ids(b, 6),
        },
        "encoder-decoder",
        NEXT,
    ),
}


RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
DETR = {k: v for k, v in SEQ2SEQ.items() if "token" not in k and k not in ("vocab_size", "max_position_embeddings")}


def detr(name: str, **more: Any) -> Callable[[], nn.Module]:
    options = {
        **DETR,
        "num_queries": 5,
        "num_labels": 4,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone_config": transformers.ResNetConfig(**{k: v for k, v in RESNET.items() if k != "model_type"}),
    }
    return hf(name, **{**options, **more})


def picture(size: int) -> Callable[[int], dict]:
    return lambda batch: {"pixel_values": noise(batch, 3, size, size)}


def pixels(size: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: noise(batch, 3, size, size)


QUERY = targets.logit(1, position=2)
MULTI = {**RESNET, "hidden_sizes": [8, 16, 16], "depths": [1, 1, 1], "out_features": ["stage2", "stage3"]}


def rt_detr() -> nn.Module:
    backbone = {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    }
    return transformers.RTDetrForObjectDetection(
        transformers.RTDetrConfig(
            backbone_config=backbone,
            use_timm_backbone=False,
            encoder_hidden_dim=16,
            encoder_in_channels=[8, 16, 16],
            encoder_ffn_dim=24,
            encoder_attention_heads=2,
            d_model=16,
            num_queries=5,
            decoder_in_channels=[16, 16, 16],
            decoder_ffn_dim=24,
            decoder_layers=2,
            decoder_attention_heads=2,
            num_labels=4,
            num_denoising=0,
            decoder_n_points=2,
        )
    )


DETECTORS = {
    "detr": Case(
        detr("DetrForObjectDetection"), picture(64), "detection", QUERY, (("encoder", (8, 8)), ("decoder", 5))
    ),
    "table_transformer": Case(detr("TableTransformerForObjectDetection"), picture(64), "detection", QUERY),
    "conditional_detr": Case(detr("ConditionalDetrForObjectDetection"), picture(64), "detection", QUERY),
    "deformable_detr": Case(
        detr(
            "DeformableDetrForObjectDetection",
            d_model=32,
            num_feature_levels=2,
            encoder_n_points=2,
            decoder_n_points=2,
            backbone_config=transformers.ResNetConfig(**{k: v for k, v in MULTI.items() if k != "model_type"}),
        ),
        picture(64),
        "detection",
        QUERY,
        refused="comes from which part",
    ),
    "rt_detr": Case(rt_detr, picture(64), "detection", QUERY, refused="feed more than one row"),
    "yolos": Case(
        hf("YolosForObjectDetection", **{**VISION, "image_size": [24, 24]}, num_detection_tokens=5, num_labels=4),
        picture(24),
        "detection",
        QUERY,
    ),
    "owlvit": Case(
        lambda: transformers.OwlViTForObjectDetection(
            transformers.OwlViTConfig(
                text_config={**SHORT, "vocab_size": WORDS, "max_position_embeddings": 8},
                vision_config={**VISION},
                projection_dim=16,
            )
        ),
        lambda b: {
            "pixel_values": noise(b, 3, 24, 24),
            "input_ids": ids(2 * b, 5),
            "attention_mask": torch.ones(2 * b, 5, dtype=torch.long),
        },
        "detection",
        targets.logit(1, position=6),
        double=False,
    ),
}


def llava_next() -> nn.Module:
    return transformers.LlavaNextForConditionalGeneration(
        transformers.LlavaNextConfig(
            vision_config={**CLIP_VISION},
            text_config=MODEL,
            image_token_index=IMAGE_TOKEN,
            image_grid_pinpoints=[[24, 48], [48, 24], [48, 48]],
        )
    )


def llava_next_inputs(batch: int) -> dict:
    # base 16 + unpadded tiles: 48x24 picture (h=24, w=48): 4 x 8 patches + 4 newlines
    patches = 16 + 4 * 8 + 4
    words = torch.cat([torch.full((batch, 2), 3), torch.full((batch, patches), IMAGE_TOKEN), ids(batch, 4)], dim=1)
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "pixel_values": noise(batch, 3, 3, 24, 24),
        "image_sizes": torch.tensor([[24, 48]] * batch),
    }


QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN_TEXT = {**LLAMA, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
QWEN_IDS = {"image_token_id": 39, "video_token_id": 38, "vision_start_token_id": 37, "vision_end_token_id": 36}


def qwen_inputs(*grids: tuple[int, int]) -> Callable[[int], dict]:
    def make(batch: int) -> dict:
        row = [3]
        for high, wide in grids:
            row += [37, *[39] * (high * wide // 4), 36]
        words = torch.tensor([[*row, 7, 8, 9]] * batch)
        sizes = torch.tensor([[1, high, wide] for _ in range(batch) for high, wide in grids])
        count = int(sizes.prod(dim=1).sum())
        return {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "image_grid_thw": sizes,
            "pixel_values": noise(count, 3 * 2 * 4 * 4),
            "mm_token_type_ids": (words == 39).long(),
        }

    return make


def qwen(name: str, vision: dict, text: dict | None = None) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        kind = getattr(transformers, name)
        return kind(
            kind.config_class(
                vision_config={**QWEN_VISION, **vision}, text_config={**QWEN_TEXT, **(text or {})}, **QWEN_IDS
            )
        )

    return build


QWENS = {
    "qwen2_vl": qwen("Qwen2VLForConditionalGeneration", {"embed_dim": 16, "hidden_size": 16}),
    "qwen2_5_vl": qwen(
        "Qwen2_5_VLForConditionalGeneration",
        {
            "hidden_size": 16,
            "out_hidden_size": 16,
            "intermediate_size": 24,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": qwen(
        "Qwen3VLForConditionalGeneration",
        {
            "hidden_size": 16,
            "out_hidden_size": 16,
            "intermediate_size": 24,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        {"head_dim": 8},
    ),
}


def instructblip() -> nn.Module:
    return transformers.InstructBlipForConditionalGeneration(
        transformers.InstructBlipConfig(
            vision_config=VISION,
            qformer_config={**BERT, "encoder_hidden_size": 16, "cross_attention_frequency": 1},
            text_config=MODEL,
            num_query_tokens=3,
            image_token_index=IMAGE_TOKEN,
        )
    )


def blip2() -> nn.Module:
    return transformers.Blip2ForConditionalGeneration(
        transformers.Blip2Config(
            vision_config=VISION,
            qformer_config={**BERT, "encoder_hidden_size": 16, "cross_attention_frequency": 1},
            text_config={"model_type": "opt", **BERT, "ffn_dim": 24, "word_embed_proj_dim": 16},
            num_query_tokens=3,
            image_token_index=IMAGE_TOKEN,
        )
    )


def donut() -> nn.Module:
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.DonutSwinConfig(**{k: v for k, v in SWIN.items() if k != "num_labels"}),
        transformers.MBartConfig(**{**SEQ2SEQ, "d_model": 32}, is_decoder=True, add_cross_attention=True),
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.VisionEncoderDecoderModel(config)


def mllama() -> nn.Module:
    return transformers.MllamaForConditionalGeneration(
        transformers.MllamaConfig(
            vision_config={
                **{k: v for k, v in VISION.items() if k != "num_attention_heads"},
                "attention_heads": 2,
                "num_global_layers": 1,
                "max_num_tiles": 2,
                "vision_output_dim": 32,
                "intermediate_layers_indices": [1],
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            },
            text_config={
                **LLAMA,
                "num_hidden_layers": 3,
                "cross_attention_layers": [1],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            image_token_index=IMAGE_TOKEN,
        )
    )


def mllama_inputs(batch: int) -> dict:
    words = torch.cat([torch.full((batch, 1), IMAGE_TOKEN), ids(batch, 6)], dim=1)
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "pixel_values": noise(batch, 1, 2, 3, 24, 24),
        "aspect_ratio_ids": torch.tensor([[2]] * batch),
        "aspect_ratio_mask": torch.tensor([[[1, 1]]] * batch),
        "cross_attention_mask": torch.ones(batch, 7, 1, 2, dtype=torch.long),
    }


def two_pictures(batch: int) -> dict:
    image = torch.full((batch, 16), IMAGE_TOKEN)
    words = torch.cat([torch.full((batch, 1), 3), image, ids(batch, 2), image, ids(batch, 4)], dim=1)
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "pixel_values": noise(2 * batch, 3, 24, 24)}


def qwen2_audio() -> nn.Module:
    sound = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
    return transformers.Qwen2AudioForConditionalGeneration(
        transformers.Qwen2AudioConfig(
            audio_config={**sound, "num_mel_bins": 8, "max_source_positions": 12},
            text_config={"model_type": "qwen2", **LLAMA},
            audio_token_index=IMAGE_TOKEN,
        )
    )


def sound_and_question(batch: int) -> dict:
    words = torch.cat([torch.full((batch, 1), 3), torch.full((batch, 6), IMAGE_TOKEN), ids(batch, 4)], dim=1)
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "input_features": noise(batch, 8, 24),
        "feature_attention_mask": torch.ones(batch, 24, dtype=torch.long),
    }


ANSWER = targets.next_token(7)
TEXT_AND_IMAGE = (("image", (4, 4)), ("text", 22))
LANGUAGE_MODELS = {
    "llava": Case(
        lambda: transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(vision_config=CLIP_VISION, text_config=MODEL, image_token_index=IMAGE_TOKEN)
        ),
        with_picture,
        "pictures in language models",
        ANSWER,
        TEXT_AND_IMAGE,
    ),
    "llava_siglip": Case(
        lambda: transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(
                vision_config=SIGLIP_VISION,
                text_config=MODEL,
                image_token_index=IMAGE_TOKEN,
                vision_feature_layer=-1,
                vision_feature_select_strategy="full",
            )
        ),
        with_picture,
        "pictures in language models",
        ANSWER,
        TEXT_AND_IMAGE,
    ),
    "llava_two": Case(
        lambda: transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(vision_config=CLIP_VISION, text_config=MODEL, image_token_index=IMAGE_TOKEN)
        ),
        two_pictures,
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("image_2", (4, 4)), ("text", 39)),
    ),
    "mllama": Case(
        mllama,
        mllama_inputs,
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("image_2", (4, 4)), ("text", 7)),
    ),
    "qwen2_audio": Case(
        qwen2_audio, sound_and_question, "pictures in language models", ANSWER, (("audio", 12), ("text", 11))
    ),
    "donut": Case(
        donut,
        lambda b: {"pixel_values": noise(b, 3, 32, 32), "decoder_input_ids": ids(b, 6)},
        "pictures in language models",
        NEXT,
        (("encoder", (16, 16)), ("decoder", 6)),
    ),
    "llava_next": Case(llava_next, llava_next_inputs, "pictures in language models", ANSWER),
    "qwen2_vl": Case(
        QWENS["qwen2_vl"], qwen_inputs((4, 6)), "pictures in language models", ANSWER, (("image", (4, 6)), ("text", 12))
    ),
    "qwen2_vl_two": Case(
        QWENS["qwen2_vl"],
        qwen_inputs((4, 6), (4, 4)),
        "pictures in language models",
        ANSWER,
        (("image", (4, 6)), ("image_2", (4, 4)), ("text", 18)),
    ),
    "qwen2_5_vl": Case(
        QWENS["qwen2_5_vl"],
        qwen_inputs((8, 6)),
        "pictures in language models",
        ANSWER,
        (("image", (8, 6)), ("text", 18)),
    ),
    "qwen3_vl": Case(
        QWENS["qwen3_vl"], qwen_inputs((4, 6)), "pictures in language models", ANSWER, (("image", (4, 6)), ("text", 12))
    ),
    "paligemma": Case(
        lambda: transformers.PaliGemmaForConditionalGeneration(
            transformers.PaliGemmaConfig(
                vision_config={**SIGLIP_VISION, "projection_dim": 16, "vision_use_head": False},
                text_config={"model_type": "gemma", **LLAMA, "head_dim": 8},
                image_token_index=IMAGE_TOKEN,
                projection_dim=16,
                hidden_size=16,
            )
        ),
        lambda b: with_picture(b, token_type_ids=torch.zeros(b, 22, dtype=torch.long)),
        "pictures in language models",
        ANSWER,
        TEXT_AND_IMAGE,
    ),
    "gemma3": Case(
        lambda: transformers.Gemma3ForConditionalGeneration(
            transformers.Gemma3Config(
                vision_config={**SIGLIP_VISION, "vision_use_head": False},
                text_config={
                    "model_type": "gemma3_text",
                    **LLAMA,
                    "head_dim": 8,
                    "query_pre_attn_scalar": 8,
                    "sliding_window": 64,
                },
                image_token_index=IMAGE_TOKEN,
                mm_tokens_per_image=4,
            )
        ),
        lambda b: with_picture(b, 4, token_type_ids=torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 0, 0]] * b)),
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("text", 10)),
    ),
    "idefics3": Case(
        lambda: transformers.Idefics3ForConditionalGeneration(
            transformers.Idefics3Config(
                vision_config=VISION,
                text_config={**MODEL, "num_key_value_heads": 2},
                image_token_id=IMAGE_TOKEN,
                scale_factor=2,
            )
        ),
        lambda b: {**with_picture(b, 4), "pixel_values": noise(b, 1, 3, 24, 24)},
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("text", 10)),
    ),
    "smolvlm": Case(
        lambda: transformers.SmolVLMForConditionalGeneration(
            transformers.SmolVLMConfig(
                vision_config=VISION,
                text_config={**MODEL, "num_key_value_heads": 2},
                image_token_id=IMAGE_TOKEN,
                scale_factor=2,
            )
        ),
        lambda b: {**with_picture(b, 4), "pixel_values": noise(b, 1, 3, 24, 24)},
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("text", 10)),
    ),
    "internvl": Case(
        lambda: transformers.InternVLForConditionalGeneration(
            transformers.InternVLConfig(
                vision_config={**VISION, "image_size": [24, 24], "patch_size": [6, 6]},
                text_config={"model_type": "qwen2", **LLAMA},
                image_token_id=IMAGE_TOKEN,
                image_seq_length=4,
                downsample_ratio=0.5,
            )
        ),
        lambda b: with_picture(b, 4),
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("text", 10)),
    ),
    "mistral3": Case(
        lambda: transformers.Mistral3ForConditionalGeneration(
            transformers.Mistral3Config(
                vision_config={"model_type": "pixtral", **VISION, "head_dim": 8},
                text_config={**MODEL, "model_type": "mistral"},
                image_token_index=IMAGE_TOKEN,
                spatial_merge_size=2,
            )
        ),
        lambda b: {**with_picture(b, 4), "image_sizes": torch.tensor([[24, 24]] * b)},
        "pictures in language models",
        ANSWER,
        (("image", (4, 4)), ("text", 10)),
    ),
    "instructblip": Case(
        instructblip,
        lambda b: {
            **with_picture(b, 3),
            "qformer_input_ids": ids(b, 5, 8),
            "qformer_attention_mask": torch.ones(b, 5, dtype=torch.long),
        },
        "pictures in language models",
        ANSWER,
    ),
    "blip2": Case(blip2, lambda b: with_picture(b, 3), "pictures in language models", ANSWER),
    "fuyu": Case(
        lambda: transformers.FuyuForCausalLM(
            transformers.FuyuConfig(
                text_config={"model_type": "persimmon", **BERT, **MARKS},
                vocab_size=WORDS,
                hidden_size=16,
                patch_size=6,
                num_channels=3,
                image_token_id=IMAGE_TOKEN,
            )
        ),
        lambda b: (
            {k: v for k, v in with_picture(b).items() if k != "pixel_values"}
            | {
                "image_patches": noise(b, 16, 108),
                "image_patches_indices": torch.cat(
                    [torch.full((b, 2), -1), torch.arange(16).expand(b, -1), torch.full((b, 4), -1)], dim=1
                ),
            }
        ),
        "pictures in language models",
        ANSWER,
    ),
    "vilt": Case(
        hf("ViltForQuestionAnswering", **BERT, image_size=24, patch_size=6, num_labels=5, max_image_length=-1),
        lambda b: {
            "input_ids": ids(b, 7),
            "attention_mask": torch.ones(b, 7, dtype=torch.long),
            "pixel_values": noise(b, 3, 24, 24),
            "pixel_mask": torch.ones(b, 24, 24, dtype=torch.long),
        },
        "pictures and text",
        3,
        (("text", 7), ("image", (4, 4))),
    ),
    "visual_bert": Case(
        hf("VisualBertForQuestionAnswering", **BERT, visual_embedding_dim=12, num_labels=5),
        lambda b: {
            "input_ids": ids(b, 7),
            "attention_mask": torch.ones(b, 7, dtype=torch.long),
            "visual_embeds": noise(b, 5, 12),
            "visual_attention_mask": torch.ones(b, 5, dtype=torch.long),
            "visual_token_type_ids": torch.ones(b, 5, dtype=torch.long),
        },
        "pictures and text",
        3,
        (("text", 7), ("image", 5)),
    ),
    "blip_vqa": Case(
        lambda: transformers.BlipForImageTextRetrieval(
            transformers.BlipConfig(
                text_config={
                    **BERT,
                    "encoder_hidden_size": 16,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                    "sep_token_id": 2,
                },
                vision_config=VISION,
                image_text_hidden_size=8,
            )
        ),
        lambda b: {
            "input_ids": ids(b, 7),
            "attention_mask": torch.ones(b, 7, dtype=torch.long),
            "pixel_values": noise(b, 3, 24, 24),
        },
        "pictures and text",
        1,
    ),
    "lxmert": Case(
        hf(
            "LxmertForQuestionAnswering",
            vocab_size=WORDS,
            hidden_size=16,
            num_attention_heads=2,
            intermediate_size=24,
            l_layers=2,
            x_layers=2,
            r_layers=2,
            num_qa_labels=5,
            visual_feat_dim=12,
            max_position_embeddings=32,
        ),
        lambda b: {
            "input_ids": ids(b, 7),
            "attention_mask": torch.ones(b, 7, dtype=torch.long),
            "visual_feats": noise(b, 5, 12),
            "visual_pos": noise(b, 5, 4).abs(),
        },
        "pictures and text",
        3,
        (("text", 7), ("image", 5)),
    ),
}


def texts(batch: int) -> dict:
    """Pictures, each compared with two texts."""
    return {
        "input_ids": ids(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.long),
        "pixel_values": noise(batch, 3, 24, 24),
    }


def two_towers(name: str, **vision: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        kind = getattr(transformers, name)
        text = {**BERT, "projection_size": 16, **MARKS}
        return kind(kind.config_class(text_config=text, vision_config={**VISION, **vision}, projection_dim=16))

    return build


TOWERS = {
    "clip": Case(two_towers("CLIPModel"), texts, "two towers", 1),
    "siglip": Case(two_towers("SiglipModel"), texts, "two towers", 1),
    "siglip2": Case(
        two_towers("Siglip2Model", num_patches=16),
        lambda b: {
            "input_ids": ids(b, 6),
            "attention_mask": torch.ones(b, 6, dtype=torch.long),
            "pixel_values": noise(b, 16, 108),
            "pixel_attention_mask": torch.ones(b, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]] * b),
        },
        "two towers",
        0,
    ),
    "align_free": Case(two_towers("AltCLIPModel"), texts, "two towers", 1),
    "chinese_clip": Case(two_towers("ChineseCLIPModel"), texts, "two towers", 1),
}


def torchvision_swin(*, v2: bool = False) -> nn.Module:
    from torchvision.models.swin_transformer import (
        PatchMergingV2,
        SwinTransformer,
        SwinTransformerBlock,
        SwinTransformerBlockV2,
    )

    more = (
        {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if v2 else {"block": SwinTransformerBlock}
    )
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5, **more)


def torchvision_maxvit() -> nn.Module:
    from torchvision.models.maxvit import MaxVit

    return MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 16],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=5,
    )


def mvit_v2() -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    config = MultiScaleVitCfg(depths=(1, 1), embed_dim=16, num_heads=2)
    return MultiScaleVit(config, img_size=(32, 32), num_classes=5)


def nest() -> nn.Module:
    from timm.models.nest import Nest

    return Nest(
        img_size=32, patch_size=2, num_levels=2, embed_dims=(16, 24), num_heads=(2, 3), depths=(1, 1), num_classes=5
    )


SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
HIERARCHIES = {
    "swin": Case(hf("SwinForImageClassification", **SWIN), picture(32), "hierarchies", 3, (("image", (16, 16)),)),
    "swin_v2": Case(hf("Swinv2ForImageClassification", **SWIN), picture(32), "hierarchies", 3, (("image", (16, 16)),)),
    "timm_swin": Case(
        timm(
            "swin_tiny_patch4_window7_224",
            img_size=64,
            patch_size=4,
            embed_dim=16,
            depths=(2, 2),
            num_heads=(2, 4),
            window_size=4,
        ),
        pixels(64),
        "hierarchies",
        3,
        (("image", (16, 16)),),
    ),
    "timm_swin_v2": Case(
        timm("swinv2_tiny_window8_256", img_size=64, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4),
        pixels(64),
        "hierarchies",
        3,
        (("image", (16, 16)),),
    ),
    "torchvision_swin": Case(torchvision_swin, pixels(64), "hierarchies", 3, (("image", (16, 16)),)),
    "torchvision_swin_v2": Case(
        lambda: torchvision_swin(v2=True), pixels(64), "hierarchies", 3, (("image", (16, 16)),)
    ),
    "donut_swin": Case(
        hf("DonutSwinForImageClassification", **SWIN), picture(32), "hierarchies", 3, (("image", (16, 16)),)
    ),
    "segformer": Case(
        hf(
            "SegformerForImageClassification",
            num_labels=5,
            depths=[1, 1],
            hidden_sizes=[16, 16],
            num_attention_heads=[2, 2],
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_encoder_blocks=2,
            mlp_ratios=[2, 2],
        ),
        picture(32),
        "hierarchies",
        3,
        refused="feed more than one row",
    ),
    "pvt": Case(
        hf(
            "PvtForImageClassification",
            image_size=32,
            num_encoder_blocks=2,
            depths=[1, 1],
            num_labels=5,
            sequence_reduction_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[4, 2],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
        ),
        picture(32),
        "hierarchies",
    ),
    "pvt_v2": Case(
        hf(
            "PvtV2ForImageClassification",
            num_encoder_blocks=2,
            depths=[1, 1],
            num_labels=5,
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
        ),
        picture(32),
        "hierarchies",
        refused="feed more than one row",
    ),
    "timm_pvt_v2": Case(
        timm("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 16, 16, 16), num_heads=(1, 2, 2, 2)),
        pixels(64),
        "hierarchies",
        refused="feed more than one row",
    ),
    "twins_svt": Case(
        timm(
            "twins_svt_small",
            img_size=64,
            embed_dims=(16, 16, 16, 16),
            num_heads=(2, 2, 2, 2),
            depths=(2, 2, 2, 2),
            wss=(2, 2, 2, 2),
            sr_ratios=(4, 2, 1, 1),
        ),
        pixels(64),
        "hierarchies",
        refused="feed more than one row",
    ),
    "twins_pcpvt": Case(
        timm(
            "twins_pcpvt_small", img_size=64, embed_dims=(16, 16, 16, 16), num_heads=(2, 2, 2, 2), depths=(1, 1, 1, 1)
        ),
        pixels(64),
        "hierarchies",
        refused="feed more than one row",
    ),
    "levit": Case(
        timm("levit_128s", img_size=64, embed_dim=(16, 16, 16), depth=(1, 1, 1), num_heads=(2, 2, 2), key_dim=8),
        pixels(64),
        "hierarchies",
    ),
    "levit_hf": Case(
        hf(
            "LevitForImageClassification",
            image_size=64,
            hidden_sizes=[16, 16, 16],
            num_labels=5,
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
            mlp_ratio=[2, 2, 2],
            attention_ratio=[2, 2, 2],
        ),
        picture(64),
        "hierarchies",
    ),
    "maxvit": Case(torchvision_maxvit, pixels(64), "hierarchies", refused="queries and keys cannot be told"),
    "timm_maxvit": Case(
        timm("maxvit_rmlp_pico_rw_256", img_size=64), pixels(64), "hierarchies", refused="feed more than one row"
    ),
    "xcit": Case(
        timm("xcit_nano_12_p8_224", img_size=32, embed_dim=24, depth=2, num_heads=3),
        pixels(32),
        "hierarchies",
        refused="feed more than one row",
    ),
    "cait": Case(
        timm("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3),
        pixels(32),
        "hierarchies",
        refused="changed after its softmax",
    ),
    "convit": Case(
        timm("convit_tiny", img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, local_up_to_layer=2),
        pixels(32),
        "hierarchies",
        refused="changed after its softmax",
    ),
    "mvit_v2": Case(mvit_v2, pixels(32), "hierarchies", refused="queries and keys cannot be told"),
    "coat": Case(timm("coat_tiny", img_size=64), pixels(64), "hierarchies", refused="no attention was seen"),
    "hiera": Case(
        hf(
            "HieraForImageClassification",
            image_size=[64, 64],
            patch_size=[7, 7],
            patch_stride=[4, 4],
            patch_padding=[3, 3],
            masked_unit_size=[4, 4],
            depths=[1, 1],
            num_heads=[1, 2],
            embed_dim=16,
            num_query_pool=1,
            query_stride=[2, 2],
            embed_dim_multiplier=2.0,
            num_labels=5,
        ),
        picture(64),
        "hierarchies",
    ),
    "timm_hiera": Case(
        timm(
            "hiera_tiny_224",
            img_size=(64, 64),
            embed_dim=16,
            stages=(1, 1),
            num_heads=1,
            q_pool=1,
            mask_unit_size=(4, 4),
        ),
        pixels(64),
        "hierarchies",
    ),
    "crossvit": Case(
        timm("crossvit_tiny_240", img_size=120, embed_dim=(16, 24), num_heads=(2, 2)),
        pixels(120),
        "hierarchies",
        streams=(("image", (10, 10)), ("image_2", (7, 7))),
    ),
    "tnt": Case(
        timm(
            "tnt_s_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=24,
            inner_dim=8,
            depth=2,
            num_heads_inner=2,
            num_heads_outer=3,
        ),
        pixels(32),
        "hierarchies",
    ),
    "nest": Case(nest, pixels(32), "hierarchies", refused="feed more than one row"),
    "davit": Case(
        timm("davit_tiny", embed_dims=(16, 16, 16, 16), num_heads=(2, 2, 2, 2), depths=(1, 1, 1, 1), window_size=2),
        pixels(64),
        "hierarchies",
        refused="feed more than one row",
    ),
}
TABLE = {**ENCODER_DECODERS, **DETECTORS, **LANGUAGE_MODELS, **TOWERS, **HIERARCHIES}


def prepared(case: Case, batch: int = 2) -> tuple[nn.Module, Any]:
    """The model and inputs for it, in float64 where it runs in that; weights that begin at zero are moved."""
    torch.manual_seed(0)
    model = case.build().eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.02 * torch.randn_like(x))
    dtype = torch.float64 if case.double else torch.float32

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    inputs = case.inputs(batch)
    return model.to(dtype), {n: cast(x) for n, x in inputs.items()} if isinstance(inputs, dict) else cast(inputs)
