import pytest
import torch
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import OptionError, TargetError
from vitrail.relevance import walk

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (targets.logit(2), [0.5, -2.0]),
        (targets.logit(), [2.0, 3.0]),
        (targets.logit([1, 0]), [-1.0, 1.0]),
        (targets.logit(torch.tensor([1, 0])), [-1.0, 1.0]),
        (targets.logit(-1), [0.5, -2.0]),
        (targets.next_token(0), [2.0, 1.0]),
        (targets.difference(0, 1), [3.0, -2.0]),
        (targets.relative_difference(0, 1), [1.5, -2.0]),
        (targets.ratio(0, 1), [-2.0, 1 / 3]),
    ],
)
def test_a_target_is_its_formula(target, expected):
    assert_close(target(LOGITS), torch.tensor(expected, dtype=torch.float64))


def test_a_probability_is_the_softmax():
    assert_close(targets.probability(1)(LOGITS), LOGITS.softmax(dim=1)[:, 1])


def test_the_gradient_of_the_relative_difference_is_the_papers():
    """Cui et al., Eq. 8: (y2 / y1^2) grad y1 - (1 / y1) grad y2."""
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(targets.relative_difference(0, 1)(logits).sum(), logits)
    y1, y2 = LOGITS[:, 0], LOGITS[:, 1]
    assert_close(gradient, torch.stack([y2 / y1**2, -1 / y1, 0 * y1], dim=1))


def test_targets_are_equal_when_they_ask_for_the_same_and_say_so_in_words():
    assert targets.difference(3, 5) == targets.difference(3, 5)
    assert targets.difference(3, 5) != targets.ratio(3, 5)
    assert str(targets.difference(3, 5)) == "difference of 3 and 5"
    assert str(targets.logit([3, 3])) == "logit of 3"
    assert str(targets.logit(4, position=2)) == "logit of 4 at position 2"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (7, "has 3 classes, 0 to 2"),
        ([0, 1, 2], "3 targets were given for a batch of 2"),
        (targets.logit(0, position=1), "no position"),
        (targets.answer_span(), "start and end logits"),
        (lambda logits: logits, "one value per sample"),
        (lambda logits: torch.zeros(2), "does not depend"),
    ],
)
def test_a_target_the_model_does_not_have_is_an_error(target, words):
    with pytest.raises(TargetError, match=words):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "gae", target)


@pytest.mark.parametrize("wrong", ["tabby", 1.5, [0.5, 1.0]])
def test_what_is_no_target_is_an_error_that_says_what_is(wrong):
    with pytest.raises(TargetError, match="a class index"):
        targets.as_target(wrong)


def test_none_is_the_predicted_class_of_each_sample():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs(batch=4)
    predicted = model(**inputs).logits.argmax(dim=1)
    found = vitrail.explain(model, inputs)
    assert found.target == targets.logit(predicted)
    assert_close(found.scores, vitrail.explain(model, inputs, target=predicted).scores)


def test_a_function_of_the_logits_is_a_target():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    found = vitrail.explain(model, inputs, "gae", lambda logits: logits[:, 2] - logits[:, 4])
    assert_close(found.scores, vitrail.explain(model, inputs, "gae", targets.difference(2, 4)).scores)


def test_an_explicit_scalar_refuses_a_contrast_and_a_default_gives_way_to_it():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    with pytest.raises(TargetError, match="scalar='probability' applies to a plain class"):
        vitrail.explain(model, inputs, "tokentm", targets.difference(0, 1), scalar="probability")
    found = vitrail.explain(model, inputs, "tokentm", targets.difference(0, 1))
    assert found.target == targets.difference([0, 0], [1, 1])


@pytest.mark.parametrize("make", [targets.difference, targets.relative_difference, targets.ratio])
def test_a_contrast_of_a_class_with_itself_is_refused(make):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    for a, b in ((1, 1), ([0, 3], [2, 3]), ([0, 3], 3)):
        with pytest.raises(TargetError, match="and itself explains nothing: name two classes"):
            make(a, b)
    predicted = model(**inputs).logits.argmax(dim=1)
    negative = int(predicted[0]) - model.config.num_labels
    with pytest.raises(TargetError, match="and itself"):
        vitrail.explain(model, inputs, "gae", make(predicted, negative))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_causal_model_is_read_at_its_last_real_token(side):
    model = tiny("hf_gpt2")
    ids = torch.tensor([[5, 9, 33, 21]])
    plain = vitrail.explain(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "gae", 7)
    pad = torch.zeros(1, 3, dtype=torch.int64)
    padded = torch.cat([ids, pad] if side == "right" else [pad, ids], dim=1)
    mask = (padded != 0).long()
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    inputs = {"input_ids": padded, "attention_mask": mask, "position_ids": places}
    found = vitrail.explain(model, inputs, "gae", targets.next_token(7))
    real = slice(0, 4) if side == "right" else slice(3, 7)
    assert_close(found.scores[:, real], plain.scores, atol=1e-9, rtol=1e-7)
    assert int(found.readout[0]) == (3 if side == "right" else 6)


@pytest.fixture(scope="module")
def reader():
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40
    )
    model = transformers.BertForQuestionAnswering(config).double().eval()
    return model, MODELS["hf_bert"].inputs(batch=1)


ANATOMY = vitrail.Anatomy(
    blocks="bert.encoder.layer", output="attention.output.dense", value_bias="attention.self.value.bias",
    ffn_input="intermediate", ffn_output="output.dense", prefix=1,
)  # fmt: skip


@pytest.mark.parametrize("method", ["gae", "attcat", "rollout", "gradtoken", "tokentm"])
def test_an_answer_is_the_sum_of_two_explanations_each_read_at_its_own_row(reader, method):
    model, inputs = reader
    output = model(**inputs)
    total = 0
    for which, logits in enumerate([output.start_logits, output.end_logits]):
        where = int(logits.argmax())
        recording = vitrail.record(
            model, inputs, lambda both, which=which, where=where: both[:, where, which],
            anatomy=vitrail.Anatomy(**{**vars(ANATOMY), "readout": where}),
        )  # fmt: skip
        total = total + walk(vitrail.METHODS[method].build(), recording).scores
    found = vitrail.explain(model, inputs, method)
    assert found.target == targets.answer_span()
    assert_close(found.scores, total)


def test_an_answer_has_no_other_scalar_than_its_logits(reader):
    model, inputs = reader
    with pytest.raises(TargetError, match="answers with a span"):
        vitrail.explain(model, inputs, "tokentm", scalar="probability")


def test_an_absolute_answer_adds_absolute_values(reader):
    model, inputs = reader
    plain = vitrail.explain(model, inputs, "attcat", targets.answer_span())
    found = vitrail.explain(model, inputs, "attcat", targets.answer_span(absolute=True))
    assert bool((found.scores >= plain.scores.abs() - 1e-12).all())
    assert bool((found.scores > plain.scores.abs() + 1e-9).any())


def test_a_model_that_answers_at_every_token_needs_a_position():
    import transformers

    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, num_labels=4
    )
    model = transformers.BertForTokenClassification(config).double().eval()
    inputs = MODELS["hf_bert"].inputs()
    with pytest.raises(TargetError, match="position=p"):
        vitrail.explain(model, inputs, "gae", 2)
    found = vitrail.explain(model, inputs, "gae", targets.logit(2, position=4))
    assert found.readout.tolist() == [4, 4]


def test_a_recording_of_an_answer_takes_one_end_at_a_time(reader):
    model, inputs = reader
    with pytest.raises(OptionError, match="one at a time"):
        vitrail.record(model, inputs)
    recording = vitrail.record(model, inputs, lambda both: both[:, 5, 0], keep={"output_grad", "leaving_grad"})
    assert recording.scalar.shape == (1,)


@pytest.mark.parametrize(
    "mixing", [lambda x: x[:, 1].sum().expand(2), lambda x: x[:, 1] - x.mean(), lambda x: x.flip(0)[:, 0]]
)
def test_a_function_that_mixes_samples_is_refused(mixing):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    with pytest.raises(TargetError, match="mixes samples"):
        vitrail.explain(model, inputs, "gae", mixing)


@pytest.mark.parametrize(
    "classes",
    [
        torch.tensor([1, 0]).to_sparse(),
        torch.tensor([1, 1], device="meta"),
        torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged),
        torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    ],
    ids=["sparse", "meta", "jagged", "nested"],
)
def test_tensors_that_hold_no_plain_numbers_are_no_classes(classes):
    for make in (targets.logit, targets.next_token):
        with pytest.raises(TargetError, match="whole number"):
            make(classes)
