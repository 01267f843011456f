import pytest
import torch
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import OptionError, TargetError
from vitrail.tools.guide import FORMS, choose_form, contrast, detail_matrix


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def images(name="timm_vit", batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, 3, *MODELS[name].size, dtype=torch.float64)


def test_without_targets_the_first_class_is_contrasted_with_the_second():
    answer = logits([1.0, 3.0, 2.0, 0.0], [5.0, 1.0, 0.0, 4.0])
    assert contrast(answer, None, None) == ((1, 0), (2, 3))


def test_a_class_that_is_not_named_is_the_likeliest_other_one():
    answer = logits([1.0, 3.0, 2.0, 0.0], [5.0, 1.0, 0.0, 4.0])
    assert contrast(answer, [1, 1], None) == ((1, 1), (2, 0))
    assert contrast(answer, None, 1) == ((2, 0), (1, 1))
    assert contrast(answer, -1, 0) == ((3, 3), (0, 0))


@pytest.mark.parametrize(
    ("row", "form", "why"),
    [
        ([9.0, 8.0, 1.0], "relative_difference", "clearly above zero"),
        ([9.0, -8.0, 1.0], "difference", "negative"),
        ([-1.0, -8.0, 1.0], "difference", "negative"),
        ([9.0, 0.8, 1.0], "difference", "near zero"),
        ([0.5, 0.4, -20.0], "difference", "near zero"),
    ],
)
def test_eq_8_is_chosen_only_where_it_is_safe(row, form, why):
    chosen, reason = choose_form(logits(row, [9.0, 8.0, 1.0]), (0, 0), (1, 1))
    assert chosen == form
    assert why in reason


@pytest.mark.parametrize(
    "row", [[9.0, 8.0, 1.0], [3.0, 4.0, 1.0], [9.0, -8.0, 1.0], [-9.0, -8.0, 1.0], [9.0, 0.01, 1.0]]
)
def test_the_chosen_form_always_rises_with_the_first_class_and_falls_with_the_second(row):
    answer = logits(row).requires_grad_()
    form, _ = choose_form(answer, (0,), (1,))
    (gradient,) = torch.autograd.grad(FORMS[form](0, 1)(answer).sum(), answer)
    assert gradient[0, 0] > 0 > gradient[0, 1]
    assert 0.05 < float(-gradient[0, 0] / gradient[0, 1]) < 20  # none of the two drops out


def test_a_detail_is_the_explanation_of_its_target_and_says_which():
    model, image = tiny("timm_vit"), images()
    found = vitrail.detail(model, image, 3, 1, form="ratio")
    assert_close(found.scores, vitrail.explain(model, image, "complete_gradient", targets.ratio(3, 1)).scores)
    assert found.target == targets.ratio([3, 3], [1, 1])
    assert found.provenance["detail"] == {"form": "ratio", "why": "asked for"}


def test_the_automatic_form_stands_in_the_target():
    model, image = tiny("timm_vit"), images()
    found = vitrail.detail(model, image, method="gae")
    answer = model(image)
    form, why = choose_form(answer, *contrast(answer, None, None))
    assert found.target.name == form
    assert found.provenance["detail"] == {"form": form, "why": why}
    assert found.method == "gae"


@pytest.mark.parametrize("name", ["hf_bert", "hf_gpt2", "hf_llama_classifier"])
def test_texts_and_next_tokens_are_contrasted(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    found = vitrail.detail(model, inputs)
    answer = model(**inputs).logits
    best = (answer[:, -1] if answer.ndim == 3 else answer).topk(2, dim=1).indices
    assert found.target.first == tuple(best[:, 0].tolist())
    assert found.target.second == tuple(best[:, 1].tolist())
    assert found.kind == "text"


@pytest.mark.parametrize("given", [(2, 2), ([0, 2], [1, 2])])
def test_a_class_against_itself_is_refused(given):
    with pytest.raises(TargetError, match="both classes are 2, but a contrast needs two"):
        vitrail.detail(tiny("timm_vit"), images(), *given)


def test_a_single_logit_has_no_other_class():
    with pytest.raises(TargetError, match="a single logit"):
        contrast(logits([1.0]), None, None)


def test_an_unknown_form_is_refused():
    with pytest.raises(OptionError, match="Did you mean difference"):
        vitrail.detail(tiny("timm_vit"), images(), form="diference")


def test_classes_that_do_not_exist_are_refused():
    with pytest.raises(TargetError, match="out of range: the model has 5 classes"):
        vitrail.detail(tiny("timm_vit"), images(), 7)


def test_a_matrix_holds_every_pair_and_the_classes_themselves():
    model, image = tiny("timm_vit"), images(batch=1)
    matrix = detail_matrix(model, image, top=3, form="difference")
    best = model(image)[0].topk(3).indices.tolist()
    for row, own in zip(matrix, best, strict=True):
        for cell, other in zip(row, best, strict=True):
            target = targets.logit(own) if own == other else targets.difference(own, other)
            assert_close(cell.scores, vitrail.explain(model, image, "complete_gradient", target).scores)


@pytest.mark.parametrize(("batch", "top", "words"), [(2, 3, "one input, but 2"), (1, 1, "2 to 5"), (1, 6, "2 to 5")])
def test_a_matrix_that_cannot_be_made_is_refused(batch, top, words):
    with pytest.raises(OptionError, match=words):
        detail_matrix(tiny("timm_vit"), images(batch=batch), top=top)
