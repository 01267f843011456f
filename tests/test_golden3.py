"""LibraGrad and GIM: every array of the third golden data, through `vitrail.explain`, in float64."""

import json
from pathlib import Path

import numpy as np
import pytest
from golden_sets import difference, golden, target_of

import vitrail

HERE = Path(__file__).parent / "golden3"
CASES = [
    pytest.param(folder, row, id=f"{folder}-{row['pattern']}")
    for row in json.loads((HERE / "mapping.json").read_text())
    for folder in row["sets"]
]
SEEN = {"v_tiny": 20, "b_tiny": 40, "llama_tiny": 20}


def arrays(folder: str, pattern: str) -> dict[str, np.ndarray]:
    """The expected arrays `item/pattern/target` of one folder."""
    with np.load(HERE / folder / "expected.npz") as found:
        return {key: found[key] for key in found.files if key.partition("/")[2].rpartition("/")[0] == pattern}


@pytest.mark.parametrize(("folder", "row"), CASES)
def test_golden3(folder, row):
    found = arrays(folder, row["pattern"])
    assert found
    case = golden(folder)
    for key, expected in found.items():
        attribution = vitrail.explain(
            case.model,
            case.item(key.split("/")[0]),
            row["method"],
            target_of(row, key),
            "paper",
            **row.get("options", {}),
        )
        # Hugging Face computes Llama's norms and rotary tables in float32 whatever the model's dtype.
        tolerance = 1e-4 if folder == "llama_tiny" else 1e-8
        assert difference(attribution.scores[0].numpy(), expected, None) < tolerance, key
        residual = attribution.provenance.get("residual", [0.0])
        assert abs(residual[0]) < (1e-4 if folder == "llama_tiny" else 1e-10), key


@pytest.mark.parametrize("folder", SEEN)
def test_every_array_belongs_to_a_row(folder):
    rows = [case.values[1] for case in CASES if case.values[0] == folder]
    assert sum(len(arrays(folder, row["pattern"])) for row in rows) == SEEN[folder]
