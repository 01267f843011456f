"""The second golden data: models in float64, inputs, and which expected arrays belong to a row of mapping.json."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).parent / "golden2"


@dataclass(frozen=True)
class Golden2:
    model: torch.nn.Module
    config: dict
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]

    def item(self, name: str, keys=("input_ids", "attention_mask", "position_ids")) -> dict[str, torch.Tensor]:
        found = {key: self.inputs.get(f"{key}/{name[3:]}") for key in keys}
        return {key: torch.from_numpy(x)[None] for key, x in found.items() if x is not None}


@cache
def golden2(name: str, attention: str = "eager") -> Golden2:
    folder = HERE / name
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["class"])
    settings = model_class.config_class(**config["config"], attn_implementation=attention)
    model = model_class(settings)
    missing, unexpected = model.load_state_dict(load_file(folder / "weights.safetensors"), strict=False)
    assert not unexpected
    assert all(key.endswith(("lm_head.weight", "embed_tokens.weight", "final_logits_bias")) for key in missing), missing
    model.tie_weights()
    return Golden2(
        model.double().eval(), config, dict(np.load(folder / "inputs.npz")), dict(np.load(folder / "expected.npz"))
    )


def mapping(*parts: str) -> list[dict]:
    return [row for row in json.loads((HERE / "mapping.json").read_text()) if row["part"] in parts]


def tolerance(name: str, pattern: str) -> float:
    """The tolerance that keys.json states."""
    rows = json.loads((HERE / "keys.json").read_text())
    return next(row["tolerance"] for row in rows if name in row["sets"] and row["pattern"] == pattern)


def keys(name: str, pattern: str) -> list[str]:
    """The expected arrays `item/pattern/target` of one folder."""
    return [key for key in golden2(name).expected if key.partition("/")[2].rpartition("/")[0] == pattern]


def span_of(key: str) -> tuple[int, int]:
    """The two numbers of `s10_14` or `g0_4`."""
    start, stop = key.rsplit("/", 1)[1][1:].split("_")
    return int(start), int(stop)


def difference(ours: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference after each array is divided by its own largest absolute value."""
    assert ours.shape == expected.shape
    return float(np.abs(ours / np.abs(ours).max() - expected / np.abs(expected).max()).max())
