import numpy as np
import pytest
from golden_sets import HERE

from vitrail.errors import OptionError
from vitrail.evaluate import bench, metrics
from vitrail.evaluate.bench.measures import columns_of
from vitrail.methods import METHODS

CONVENTIONS = {
    "chefer": {"threshold": "mean", "area": "chefer", "units": "pixels", "target": "predicted", "judged": "label"},
    "vtranm": {"threshold": "mean", "area": "unit", "units": "pixels", "drops": True},
    "gradtoken": {"threshold": "best", "area": "chefer", "ks": tuple(range(10, 90, 10))},
    "attcat": {"text_mode": "attcat", "absolute": True, "kendall": "attcat", "k": 20, "text_target": "label"},
    "cui": {"units": "patches", "target": "label"},
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_paper_has_its_conventions(name):
    protocol = bench.find_protocol(name)
    assert {key: getattr(protocol, key) for key in CONVENTIONS[name]} == CONVENTIONS[name]
    assert protocol.fill == "black"


@pytest.mark.parametrize("name", bench.PROTOCOLS)
def test_every_column_is_made_of_metrics_that_exist(name):
    columns = [column for measure in bench.MEASURES.values() for column in measure.columns(bench.find_protocol(name))]
    assert {need for column in columns for need in column.needs} <= set(bench.MEASURES)


@pytest.fixture(scope="module")
def golden():
    inputs, expected = (dict(np.load(HERE / "metrics" / f"{part}.npz")) for part in ("inputs", "expected"))
    return inputs, expected


def column_value(protocol, metric, name, rows):
    (column,) = (c for c in columns_of(bench.find_protocol(protocol), [metric]) if c.name == name)
    return column.finish(column.features([(row,) for row in rows]).mean(axis=0, keepdims=True))[0]


@pytest.mark.parametrize(
    ("protocol", "curve", "key"),
    [
        ("chefer", "accuracy_clean_then_0.1_to_0.9", "auc_chefer"),
        ("vtranm", "accuracy_0_to_100_step5", "auc_vtranm_default"),
    ],
)
def test_areas_are_the_golden_ones(golden, protocol, curve, key):
    accuracy = golden[0][f"perturbation/{curve}"].tolist()  # the rules are linear: one example may hold the mean curve
    found = column_value(protocol, "positive", "positive AUC", [{"hits": accuracy, "probability": accuracy}])
    np.testing.assert_allclose(found, golden[1][f"perturbation/{key}"], rtol=1e-9)


def test_the_drops_of_attcat_are_the_golden_ones(golden):
    inputs, expected = golden
    rows = [{"p": p, "p_k": k} for p, k in zip(inputs["aopc/p"], inputs["aopc/p_k_9levels"], strict=True)]
    found = column_value("attcat", "text_deletion", "AOPC", rows)
    np.testing.assert_allclose(found, expected["aopc/attcat_code_aopc_abs"], rtol=1e-9)
    found = column_value("attcat", "text_padding", "LOdds", rows)
    np.testing.assert_allclose(found, expected["aopc/attcat_code_logodds"], rtol=1e-9)


def test_the_drops_of_vtranm_are_the_golden_ones(golden):
    inputs, expected = golden
    curves = np.concatenate([inputs["aopc/p"][:, None], inputs["aopc/p_k_21levels"][:, 1:]], axis=1)
    rows = [{"hits": [0] * 21, "probability": row.tolist()} for row in curves]
    found = column_value("vtranm", "positive", "AOPC", rows)
    np.testing.assert_allclose(found, expected["aopc/vtranm_aopc"], rtol=1e-9)
    found = column_value("vtranm", "positive", "LOdds", rows)
    np.testing.assert_allclose(found, expected["aopc/vtranm_lodds"], rtol=1e-9)


def test_segmentation_at_the_mean_is_the_golden_one(golden):
    inputs, expected = golden
    rows = metrics.segmentation_counts(inputs["seg/maps_14x14"], inputs["seg/masks"]).rows()
    for name, key in (
        ("pixel accuracy", "pixel_accuracy"),
        ("mIoU", "mIoU"),
        ("mAP", "mAP"),
        ("mF1", "mF1_whole_image"),
    ):
        found = column_value("chefer", "segmentation", name, rows)
        np.testing.assert_allclose(found, 100 * expected[f"seg/plain/{key}"], rtol=1e-9)


def test_segmentation_at_the_best_threshold_is_that_of_the_metric(golden):
    inputs, _ = golden
    expected = metrics.segmentation(inputs["seg/maps_14x14"], inputs["seg/masks"], threshold="best")
    rows = metrics.segmentation_counts(inputs["seg/maps_14x14"], inputs["seg/masks"]).rows()
    found = [column_value("gradtoken", "segmentation", name, rows) for name in ("pixel accuracy", "mIoU", "mF1")]
    wanted = [expected.pixel_accuracy, expected.mean_iou, expected.mean_f1]
    np.testing.assert_allclose(found, 100 * np.array(wanted), rtol=1e-12)


def test_a_changed_convention_stands_in_the_name():
    changed = bench.find_protocol("chefer").with_(fill="blur", ks=[5, 10])
    assert changed.name == "chefer(fill=blur, ks=5+10)"
    assert bench.find_protocol("chefer").with_(fill="black").name == "chefer"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fill": "blck"}, "Did you mean black"),
        ({"levels": (0.1, 0.2)}, "levels must rise from 0"),
        ({"levels": (0.0, 0.5, 0.2)}, "levels must rise from 0"),
        ({"filling": "black"}, "no convention 'filling'"),
    ],
)
def test_a_convention_that_does_not_exist_is_refused(changes, words):
    with pytest.raises(OptionError, match=words):
        bench.find_protocol("chefer").with_(**changes)


def test_an_unknown_protocol_is_told_its_neighbours():
    with pytest.raises(OptionError, match="Did you mean chefer"):
        bench.find_protocol("cheffer")


@pytest.mark.parametrize("name", bench.ABLATIONS)
def test_every_variant_of_an_ablation_can_be_built(name):
    variants = bench.ABLATIONS[name](5)
    for method, options in variants:
        METHODS[method].build(**METHODS[method].resolve("recommended", options, "image"))
    assert len({str(variant) for variant in variants}) == len(variants)


def test_the_ablations_have_the_rows_of_the_papers():
    assert len(bench.ABLATIONS["vtranm"](12)) == 6
    options = [options for _, options in bench.ABLATIONS["gradtoken"](5)]
    assert [o["scheme"] for o in options if "scheme" in o] == [
        "none", "rollout_elementwise", "rollout_matmul", "average_elementwise", "average_matmul",
    ]  # fmt: skip
    assert [o["depth"] for o in options if "depth" in o] == [2, 3, 4]
