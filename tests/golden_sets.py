"""The golden folders as models in float64, inputs, and the rows of mapping.json."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from vitrail import targets

HERE = Path(__file__).parent / "golden"


INPUTS = (
    "input_ids", "attention_mask", "position_ids", "decoder_input_ids", "pixel_values", "pixel_mask",
)  # fmt: skip


@dataclass(frozen=True)
class Golden:
    model: torch.nn.Module
    config: dict
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]

    def item(self, name: str):
        """One item: a picture, or the model's inputs."""
        if self.config.get("kind") == "vit":
            return torch.from_numpy(self.inputs[f"image/{name[3:]}"])[None].double()
        found = {key: self.inputs.get(f"{key}/{name[3:]}") for key in INPUTS}
        given = {key: torch.from_numpy(x)[None] for key, x in found.items() if x is not None}
        return {key: x.double() if x.is_floating_point() else x for key, x in given.items()}


TIED = ("lm_head.weight", "embed_tokens.weight", "final_logits_bias")
"""What a file of weights may leave out: tied to other weights, or zero."""


def read_golden(folder: Path, build: Callable[[dict], torch.nn.Module]) -> Golden:
    """The data of a folder, with the model that is built of its config."""
    config = json.loads((folder / "config.json").read_text())
    model = build(config)
    missing, unexpected = model.load_state_dict(load_file(folder / "weights.safetensors"), strict=False)
    assert not unexpected
    assert all(key.endswith(TIED) for key in missing), missing
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    arrays = [dict(np.load(folder / name)) for name in ("inputs.npz", "expected.npz")]
    return Golden(model.double().eval(), config, *arrays)


def _vit(c):
    import timm

    return timm.models.VisionTransformer(
        img_size=c["img_size"], patch_size=c["patch_size"], embed_dim=c["embed_dim"], depth=c["depth"],
        num_heads=c["num_heads"], mlp_ratio=c["mlp_ratio"], num_classes=c["num_classes"],
    )  # fmt: skip


def _bert(c):
    from transformers import BertConfig, BertForSequenceClassification

    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings "
        "type_vocab_size num_labels layer_norm_eps pad_token_id"
    )
    return BertForSequenceClassification(BertConfig(hidden_act="gelu", **{n: c[n] for n in names.split()}))


def _gpt2(c):
    from transformers import GPT2Config, GPT2LMHeadModel

    names = "vocab_size n_embd n_layer n_head n_positions layer_norm_epsilon activation_function"
    return GPT2LMHeadModel(GPT2Config(**{n: c[n] for n in names.split()}, bos_token_id=0, eos_token_id=0))


def _llama(c):
    from transformers import LlamaConfig, LlamaForCausalLM

    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
        "max_position_embeddings rms_norm_eps hidden_act tie_word_embeddings attention_bias mlp_bias"
    )
    return LlamaForCausalLM(LlamaConfig(**{n: c[n] for n in names.split()}))


BUILDERS = {"vit": _vit, "bert": _bert, "gpt2": _gpt2, "llama": _llama}


@cache
def golden(name: str) -> Golden:
    return read_golden(HERE / name, lambda config: BUILDERS[config["kind"]](config))


def rows(issue: str) -> list[dict]:
    return [row for row in json.loads((HERE / "mapping.json").read_text()) if row["issue"] == issue]


def keys(name: str, row: dict) -> list[str]:
    """The expected arrays of one row in one folder: item/pattern, with the target if there is one."""
    found = []
    for key in golden(name).expected:
        item, _, rest = key.partition("/")
        pattern, _, tail = rest.rpartition("/") if "target" in row else (rest, "", "")
        padded = name == "b_tiny" and (golden(name).inputs[f"attention_mask/{item[3:]}"] == 0).any()
        fits = pattern == row["pattern"] and (not tail or tail.startswith("t"))
        if fits and not (row.get("unpadded_only") and padded):
            found.append(key)
    return found


def target_of(row: dict, key: str):
    kind = row.get("target")
    if kind is None:
        return None
    classes = [int(part[1:]) for part in key.rsplit("/", 1)[1].split("_vs_")]
    if kind == "index":
        return classes[0]
    return getattr(targets, kind)(*classes)


def options_of(case: Golden, row: dict, key: str) -> dict:
    """The options of a row; one that names an array of inputs.npz stands for that array."""
    item = key.split("/")[0][3:]
    return {
        name: case.inputs[value.removeprefix("inputs.npz: ").replace("<item>", item)]
        if isinstance(value, str) and value.startswith("inputs.npz: ")
        else value
        for name, value in row.get("options", {}).items()
    }


COMPARE = {
    None: lambda ours, golden: (ours, golden),
    "pixels": lambda ours, golden: (ours, golden),
    "minmax": lambda ours, golden: (minmax(ours), minmax(golden)),
    "golden_drops_cls": lambda ours, golden: (ours, golden[1:]),
    "drop_cls": lambda ours, golden: (ours[1:], golden),
    "without_cls": lambda ours, golden: (ours[1:], golden[1:]),
    "without_last": lambda ours, golden: (ours[:-1], golden[:-1]),
}


def minmax(x: np.ndarray) -> np.ndarray:
    return np.zeros_like(x) if x.max() == x.min() else (x - x.min()) / (x.max() - x.min())


def difference(ours: np.ndarray, expected: np.ndarray, compare: str | None) -> float:
    """The largest difference after each array is divided by its own largest absolute value."""
    ours, expected = COMPARE[compare](
        ours, np.nan_to_num(expected).reshape(-1)
    )  # the original is 0/0 where zeros are right
    assert ours.shape == expected.shape

    def scaled(x):
        return x / np.abs(x).max() if np.abs(x).max() > 0 else x

    return float(np.abs(scaled(ours) - scaled(expected)).max())
