import re
import sys
from pathlib import Path

import pytest

from vitrail.errors import OptionError
from vitrail.evaluate import metrics


def test_every_public_name_is_there_once():
    assert len(set(metrics.__all__)) == len(metrics.__all__)
    assert [name for name in metrics.__all__ if not hasattr(metrics, name)] == []


def test_the_names_the_design_promises_are_public():
    promised = (
        "segmentation area aopc log_odds kendall precision_at_k token_f1 token_f1_at_k comprehensiveness sufficiency "
        "perturbation_curve"
    )
    assert set(promised.split()) <= set(metrics.__all__)


def test_metrics_import_no_model_no_recording_and_no_scikit_learn():
    folder = Path(metrics.__file__).parent
    lines = [
        line
        for file in folder.glob("*.py")
        for line in re.findall(r"^ *(?:from|import) ([\w.]+)", file.read_text(), re.M)
    ]
    outside = {line for line in lines if not line.startswith("vitrail.evaluate.metrics")}
    heavy = {name for name in outside if name.split(".")[0] not in sys.stdlib_module_names}
    allowed = {"torch", "numpy", "scipy", "jaxtyping"}
    assert {name for name in heavy if name.split(".")[0] not in allowed} == {"vitrail.errors"}


@pytest.mark.parametrize(
    ("call", "help"),
    [
        (lambda: metrics.area([1, 0], rule="cheffer"), "no rule 'cheffer'. Did you mean chefer"),
        (lambda: metrics.segmentation([[[1.0]]], [[[1]]], threshold="bset"), "no threshold 'bset'. Did you mean best"),
        (lambda: metrics.kendall([[1.0]], [[1.0]], mode="atcat"), "no mode 'atcat'. Did you mean attcat"),
        (lambda: metrics.perturbed_ids([1], [1.0], mode="erasre"), "no mode 'erasre'. Did you mean eraser"),
        (
            lambda: metrics.perturbed_ids([1], [1.0], how="drop"),
            "no way of removing tokens 'drop'. Known: cut, delete, keep, pad",
        ),
    ],
)
def test_a_misspelt_convention_is_answered_with_the_right_one(call, help):
    with pytest.raises(OptionError, match=help):
        call()
