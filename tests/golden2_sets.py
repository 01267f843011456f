"""The second golden data: models in float64, inputs, and which expected arrays belong to a row of mapping.json."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers
from golden_sets import Golden, read_golden

HERE = Path(__file__).parent / "golden2"


@cache
def golden2(name: str, attention: str = "eager") -> Golden:
    def build(config: dict) -> torch.nn.Module:
        kind, given = getattr(transformers, config["class"]), dict(config["config"])
        if "backbone_config" in given:
            given["backbone_config"] = transformers.ResNetConfig(**given["backbone_config"])
        return kind(kind.config_class(**given, attn_implementation=attention))

    return read_golden(HERE / name, build)


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
