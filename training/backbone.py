"""A pretrained encoder with a fresh head, and its tokenizer, from a Hugging Face folder on this machine."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from training.sentences import read_vocabulary

# Positions that no token gets: RoBERTa and its kin count from the padding token's number on.
UNUSED_POSITIONS = {"mpnet": 2, "roberta": 2, "xlm-roberta": 2, "camembert": 2}


def load_backbone(auto: Any, init: Path, **settings: Any) -> PreTrainedModel:  # noqa: ANN401 - an auto class of transformers
    """The model of an auto class with the folder's encoder in single precision; only its head is random.

    Args:
        settings: what to change in the configuration.
    """
    if not (init / "config.json").is_file():
        raise FileNotFoundError(f"{init} holds no config.json: name a folder with a Hugging Face encoder.")
    config = AutoConfig.from_pretrained(init, trust_remote_code=False, **settings)
    model, info = auto.from_pretrained(
        init,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    encoder = f"{model.base_model_prefix}."
    missing = sorted(n for n in info["missing_keys"] if n.startswith(encoder) and ".pooler." not in n)
    if missing:
        # transformers fills them with random numbers and only warns.
        raise ValueError(f"{init} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}.")
    return model


def load_tokenizer(init: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, or BERT's over `vocab.txt` where the folder names none; it knows the longest input."""
    config = AutoConfig.from_pretrained(init, trust_remote_code=False)
    if any((init / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        tokenizer = AutoTokenizer.from_pretrained(init, trust_remote_code=False)
    else:
        tokenizer = BertTokenizer(vocab=read_vocabulary(init / "vocab.txt"))
    positions = config.max_position_embeddings - UNUSED_POSITIONS.get(config.model_type, 0)
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    return tokenizer
