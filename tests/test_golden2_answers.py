"""Golden data 2, parts A and B: continuations of four language models, through `vitrail.explain`, in float64."""

import numpy as np
import pytest
import torch
from golden2_sets import difference, golden2, keys, mapping, span_of, tolerance

import vitrail
from vitrail import targets

CASES = [
    pytest.param(folder, row, id=f"{folder}-{row['pattern']}")
    for row in mapping("A", "B")
    if row["call"] == "explain"
    for folder in row["sets"]
]
MODELS = ("llm_llama", "llm_qwen3", "llm_gemma2", "llm_gpt2")


@pytest.mark.parametrize(("folder", "row"), CASES)
def test_golden_continuations(folder, row):
    case, found = golden2(folder), keys(folder, row["pattern"])
    assert found, f"no expected array matches {row['pattern']}"
    options = row["options"] | ({"batch": 32} if row["method"] == "integrated_gradients" else {})
    for key in found:
        inputs = case.item(key.split("/")[0])
        target = targets.continuation(*span_of(key))
        ours = vitrail.explain(case.model, inputs, row["method"], target, row["preset"], **options).scores[0]
        real = inputs["attention_mask"][0].bool().numpy()
        assert difference(ours.numpy()[real], case.expected[key][real]) < tolerance(folder, row["pattern"]), key
        assert not ours.numpy()[~real].any()


@pytest.mark.parametrize("folder", MODELS)
def test_the_readout_and_the_scalar_are_the_golden_ones(folder):
    case = golden2(folder)
    for key in keys(folder, "start_weights"):
        inputs, (start, stop) = case.item(key.split("/")[0]), span_of(key)
        recording = vitrail.record(case.model, inputs, targets.continuation(start, stop))
        weights = recording.layers[-1].readout_norms[0].numpy()
        assert difference(weights, case.expected[key]) < tolerance(folder, "start_weights")
        predicting = np.zeros(len(weights))
        predicting[start - 1 : stop - 1] = 1 / (stop - start)
        np.testing.assert_allclose(recording.layers[-1].readout[0].numpy(), predicting, atol=1e-12)
        summands = case.expected[key.replace("start_weights", "logprob")]
        np.testing.assert_allclose(recording.scalar.numpy(), summands.sum(), atol=tolerance(folder, "logprob") * 10)


@pytest.mark.parametrize("folder", MODELS)
def test_the_word_embedding_is_not_the_first_blocks_input(folder):
    """GPT-2 adds positions in between: the golden data keep that near miss."""
    for key in keys(folder, "input_x_gradient_with_positions"):
        inputs = golden2(folder).item(key.split("/")[0])
        found = vitrail.explain(
            golden2(folder).model, inputs, "input_x_gradient", targets.continuation(*span_of(key))
        ).scores[0]
        real = inputs["attention_mask"][0].bool().numpy()
        assert difference(found.numpy()[real], golden2(folder).expected[key][real]) < 1e-8


@pytest.mark.parametrize(
    ("method", "options"),
    [("gae", {}), ("attcat", {}), ("attn_lrp", {}), ("tokentm", {"readout": "gradient"}), ("rollout", {}),
     ("integrated_gradients", {"steps": 3})],
)  # fmt: skip
def test_a_padded_batch_gives_what_its_samples_give(method, options):
    """One start for each sample; left padding and right padding change nothing but the columns."""
    case = golden2("llm_llama", "sdpa")
    both = [case.item("seq0"), case.item("seq1")]
    left = {name: torch.cat([one[name] for one in both]) for name in ("input_ids", "attention_mask")}
    right = {name: torch.stack([x[0], x[1].roll(-4)]) for name, x in left.items()}
    batch = vitrail.explain(case.model, left, method, targets.continuation([6, -3], [11, 14]), **options).scores
    ends = vitrail.explain(case.model, right, method, targets.continuation([-8, -3], [-3, 10]), **options).scores
    assert torch.equal(ends[1, 10:], torch.zeros(4, dtype=ends.dtype))
    for found, rolled in ((batch, 0), (ends, -4)):
        for sample, (start, stop) in enumerate([(6, 11), (11, 14)]):
            alone = vitrail.explain(case.model, both[sample], method, targets.continuation(start, stop), **options)
            expected = alone.scores[0].roll(rolled * sample)
            torch.testing.assert_close(found[sample], expected, atol=2e-6, rtol=1e-5)  # rotary tables are float32


@pytest.mark.parametrize("method", ["gae", "tokentm"])
def test_a_model_that_padding_makes_nan_is_explained_and_said_to_be(method):
    """Eager attention rounds its mask to float32, where the lowest float64 is minus infinity."""
    case = golden2("llm_qwen3")
    assert case.model(**case.item("seq1")).logits.isnan().all()
    found = vitrail.explain(case.model, case.item("seq1"), method, targets.continuation(10))
    assert any("NaN" in said for said in found.provenance["assumed"])


def test_the_target_says_its_columns():
    case = golden2("llm_gpt2")
    found = vitrail.explain(case.model, case.item("seq1"), "gae", targets.continuation(-4, -1))
    assert (found.target.start, found.target.stop) == ((10,), (13,))
    assert str(found.target) == "log-probability of tokens 10 to 12"


@pytest.mark.parametrize(
    ("start", "stop", "words"),
    [
        (0, 3, "touches padding"),
        (4, 6, "has no real token before it"),
        (3, 6, "touches padding"),
        (9, 9, "is empty"),
        (-1, -3, "is empty"),
        (12, 15, "is outside the input"),
        (-20, None, "is outside the input"),
        ([5, 6], None, "2 values of start were given for a batch of 1"),
        (1.5, None, "start is a whole number"),
        (None, None, "needs a start"),
    ],
)
def test_spans_that_cannot_be_explained(start, stop, words):
    case = golden2("llm_gpt2")
    with pytest.raises(vitrail.VitrailError, match=words):
        vitrail.explain(case.model, case.item("seq1"), "gae", targets.continuation(start, stop))


def test_a_model_of_masked_words_has_no_continuation():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
    with pytest.raises(vitrail.VitrailError, match="not causal"):
        vitrail.explain(
            BertForMaskedLM(config).eval(), {"input_ids": torch.arange(2, 9)[None]}, "gae", targets.continuation(3)
        )
