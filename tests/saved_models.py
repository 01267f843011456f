"""Tiny models with random weights, saved into a folder as their libraries save them."""

import timm
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace, Split
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
    CLIPImageProcessor,
    GPT2Config,
    GPT2LMHeadModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

ARCH = "test_vit"
WORDS = ["the", "quick", "brown", "fox", "a", "dull", "film", "who", "sleeps", "man", "##s", "."]
LABELS = {0: "negative, bad", 1: "positive, good", 2: "none at all"}


def save_timm(folder, *, classes=10):
    """Random weights of the architecture that timm keeps for its own tests."""
    model = timm.create_model(ARCH, num_classes=classes)
    path = folder / "weights.safetensors"
    save_file(model.state_dict(), path)
    return path


def _bert_tokenizer(folder):
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab), encoding="utf-8")
    BertTokenizerFast(vocab={word: i for i, word in enumerate(vocab)}).save_pretrained(folder)
    return len(vocab)


def _bert_config(vocabulary, **more):
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
        **more,
    )


def save_bert(folder, model_class=BertForSequenceClassification):
    folder.mkdir(exist_ok=True)
    vocabulary = _bert_tokenizer(folder)
    labels = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    more = labels if model_class is BertForSequenceClassification else {}
    model_class(_bert_config(vocabulary, **more)).save_pretrained(folder)
    return folder


def save_question_bert(folder):
    return save_bert(folder, BertForQuestionAnswering)


def save_headless_bert(folder):
    return save_bert(folder, BertModel)


def save_gpt2(folder):
    folder.mkdir(exist_ok=True)
    words = {word: i for i, word in enumerate(["<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    config = GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def save_vit(folder):
    folder.mkdir(exist_ok=True)
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        id2label={0: "tabby, tabby cat", 1: "boxer", 2: "crane", 3: "Crane"},
        label2id={"tabby, tabby cat": 0, "boxer": 1, "crane": 2, "Crane": 3},
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def save_llava(folder):
    """A model that answers questions about pictures of 4 x 4 patches in words of one letter."""
    special = ["<pad>", "<s>", "</s>", "<unk>", "<image>"]
    vocabulary = [*special, *(f"\u2581{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )  # fmt: skip
    pictures = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    LlavaProcessor(
        image_processor=pictures, tokenizer=tokenizer, patch_size=6, vision_feature_select_strategy="default",
        image_token="<image>", num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": 24, "patch_size": 6, **sizes},
        text_config={"model_type": "llama", "vocab_size": len(vocabulary), "num_key_value_heads": 2, **sizes,
                     "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        image_token_index=4,
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config)
    model.generation_config.max_length = None
    model.generation_config.suppress_tokens = [0, 1, 2, 3, 4]
    model.save_pretrained(folder)
    return folder
