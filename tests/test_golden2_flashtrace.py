"""Golden data 2, part F: IFR and FlashTrace as the released package computes them."""

import pytest
import torch
import transformers
from golden2_sets import difference, golden2, keys, mapping, span_of, tolerance

import vitrail
from vitrail import targets
from vitrail.errors import MethodError


def called(case, row, key):
    """The call that the golden data describe: a span of the generation, in columns of the whole input."""
    item = key.split("/")[0]
    inputs, prompt = case.item(item), int(case.inputs[f"prompt_length/{item[3:]}"])
    (first, last), options = span_of(key), dict(row["options"])
    if row["method"] == "flashtrace" and first > 0:  # a reasoning span and an output span: their hull is followed
        options["reasoning"] = (prompt + first, prompt + 3)
        first = 3
    target = targets.continuation(prompt + first, prompt + last + 1)
    return prompt, vitrail.explain(case.model, inputs, row["method"], target, row["preset"], **options)


@pytest.mark.parametrize("row", mapping("F"), ids=lambda row: row["pattern"])
def test_golden_flows(row):
    case = golden2("flashtrace")
    assert keys("flashtrace", row["pattern"])
    for key in keys("flashtrace", row["pattern"]):
        prompt, found = called(case, row, key)
        assert difference(found.scores[0, :prompt].numpy(), case.expected[key]) < tolerance(
            "flashtrace", row["pattern"]
        )
        whole = case.expected.get(key.replace("ifr_span", "ifr_span_all_tokens"))
        if whole is not None and row["method"] == "ifr":
            assert difference(found.scores[0].numpy()[: len(whole)], whole) < tolerance("flashtrace", "ifr_span")


@pytest.mark.parametrize("method", ["ifr", "flashtrace"])
def test_attention_beside_the_feed_forward_part_is_refused(method):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    config = transformers.GPTNeoXConfig(vocab_size=60, max_position_embeddings=32, **sizes)
    model = transformers.GPTNeoXForCausalLM(config).double().eval()
    with pytest.raises(MethodError, match="side by side"):
        vitrail.explain(model, {"input_ids": torch.arange(3, 12)[None]}, method, targets.continuation(6, 9))
