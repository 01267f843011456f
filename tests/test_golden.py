"""Every row of mapping.json that this release covers, through `vitrail.explain`, in float64."""

import pytest
from golden_sets import difference as largest_difference
from golden_sets import golden, keys, options_of, rows, target_of

import vitrail

TOLERANCE = {
    **dict.fromkeys(
        ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attn_lrp", "abs_lrp"), 1e-9
    ),
    "grad_cam": 1e-10, "gae": 1e-10, "raw_attention": 1e-10, "rollout": 1e-10,
    "complete_gradient": 1e-9, "absolute_gradient": 1e-9, "tokentm": 1e-9, "gradtoken": 1e-9,
    "input_x_gradient": 1e-9, "bi_head": 1e-10, "bi_token": 1e-10, "tam": 1e-10,
    "attcat": 1e-9, "cat": 1e-9, "grads": 1e-9, "att_grads": 1e-9,
    "feature_grad_cam": 1e-8, "agcam": 1e-10, "dix": 1e-7, "le_grad": 1e-10,
    "vit_cx": 1e-8, "tis": 1e-8,
}  # fmt: skip
CASES = [
    pytest.param(folder, row, id=f"{folder}-{row['pattern']}-{row['method']}")
    for issue in ("foundation", "baselines")
    for row in rows(issue)
    for folder in row["sets"]
    if folder != "v_deit"  # its expected values are kept apart
]


@pytest.mark.parametrize(("folder", "row"), CASES)
def test_golden(folder, row):
    case = golden(folder)
    found = keys(folder, row)
    assert found, f"no expected array matches {row['pattern']}"
    for key in found:
        attribution = vitrail.explain(
            case.model,
            case.item(key.split("/")[0]),
            method=row["method"],
            target=target_of(row, key),
            preset=row.get("preset", "paper"),
            **options_of(case, row, key),
        )
        ours = (attribution.pixels.flatten(1) if row.get("compare") == "pixels" else attribution.scores)[0].numpy()
        # Hugging Face computes Llama's norms and rotary tables in float32 whatever the model's dtype.
        tolerance = 1e-4 if folder == "llama_tiny" else TOLERANCE[row["method"]]
        assert largest_difference(ours, case.expected[key], row.get("compare")) < tolerance, key
