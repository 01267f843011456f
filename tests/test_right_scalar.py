"""The scalar that is explained is the one that was asked for, or the call says which choices there are."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import InputError, RuleError, TargetError

IDS = torch.tensor([[3, 4, 5, 6, 9], [7, 8, 9, 1, 2]])
METHODS = ["auto", "gae", "leave_one_out", "integrated_gradients", "rollout"]


class Answers(nn.Module):
    """One classifier whose answer comes in many forms."""

    def __init__(self, form, read="mean"):
        super().__init__()
        torch.manual_seed(1)
        self.form, self.read = form, read
        self.embed, self.places = nn.Embedding(30, 12), nn.Parameter(torch.randn(20, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def forward(self, input_ids):
        x = self.encoder(self.embed(input_ids) + self.places[: input_ids.shape[1]])
        features = x.mean(dim=1) if self.read == "mean" else x[:, 0]
        return FORMS[self.form](features, self.head(features), x)


FORMS = {
    "plain": lambda f, y, x: y,
    "features first": lambda f, y, x: (f, y),
    "features last": lambda f, y, x: (y, f),
    "tokens first": lambda f, y, x: [x, y],
    "a tuple first": lambda f, y, x: ((y,), f),
    "one in a tuple": lambda f, y, x: (y,),
    "one in a list": lambda f, y, x: [y],
    "the same twice": lambda f, y, x: (y, y),
    "a loss first": lambda f, y, x: (y.logsumexp(dim=1).mean(), y),
    "ids first": lambda f, y, x: (y.argmax(dim=1), y),
    "logits by name": lambda f, y, x: {"logits": y},
    "a loss by name": lambda f, y, x: {"loss": y.logsumexp(dim=1).mean(), "logits": y},
    "a strange loss": lambda f, y, x: {"loss": torch.special.i0(y).sum(), "logits": y, "features": f},
    "rule on the way": lambda f, y, x: {"logits": torch.special.i0(y)},
    "complex": lambda f, y, x: torch.complex(y, y),
}
SAME = ["one in a tuple", "one in a list", "the same twice", "a loss first", "ids first", "logits by name",
        "a loss by name", "a strange loss"]  # fmt: skip


def explain(form, method, target=1, **options):
    model = Answers(form, options.pop("read", "mean")).double().eval()
    options |= {"steps": 5} if method == "integrated_gradients" else {}
    return vitrail.explain(model, {"input_ids": IDS}, method, target, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", SAME)
def test_the_form_of_the_answer_changes_no_map(form, method):
    plain, found = explain("plain", method), explain(form, method)
    assert found.method == plain.method
    assert_close(found.scores, plain.scores)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["features first", "features last", "tokens first"])
@pytest.mark.parametrize("target", [1, lambda y: y[:, 1]])
def test_of_several_answers_none_is_taken(form, method, target):
    with pytest.raises(
        InputError, match=r"several tensors that may be the answer \(0: .*1: .*which are the logits. Ex"
    ):
        explain(form, method, target)


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_behind_a_tuple_of_others_is_not_taken_for_the_logits(method):
    with pytest.raises(InputError, match="begins with a tuple"):
        explain("a tuple first", method)


def test_an_operation_without_a_rule_on_the_way_is_still_refused():
    with pytest.raises(RuleError, match="i0"):
        explain("rule on the way", "attn_lrp")
    assert "i0" in explain("rule on the way", "auto").provenance["default"]


@pytest.mark.parametrize("method", METHODS)
def test_complex_numbers_are_refused(method):
    with pytest.raises(InputError, match="only real numbers"):
        explain("complex", method)
    with pytest.raises(TargetError, match="complex128, but only real numbers"):
        explain("plain", method, lambda y: torch.complex(y[:, 0], y[:, 1]))
    with pytest.raises(TargetError, match="int64, but only real numbers"):
        explain("plain", method, lambda y: y.argmax(dim=1))


@pytest.mark.parametrize("method", ["auto", "gradtoken", "gae", "attn_lrp", "leave_one_out"])
@pytest.mark.parametrize("form", ["plain", "a loss by name"])
def test_a_first_word_that_the_answer_is_read_from_is_a_word(form, method):
    """Nothing says that the first token is a mark."""
    assert bool((explain(form, method, read="first").scores[:, 0] != 0).any())


def test_a_first_token_that_is_said_to_be_a_mark_is_one():
    special = torch.zeros_like(IDS)
    special[:, 0] = 1
    model = Answers("plain", "first").double().eval()
    found = vitrail.explain(model, {"input_ids": IDS, "special_tokens_mask": special}, "gradtoken", 1)
    assert not found.scores[:, 0].any()


def decisions():
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=4, act_dim=3, hidden_size=16, n_layer=2, n_head=2, max_ep_len=20, n_inner=20, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    given = {
        "states": torch.randn(2, 5, 4), "actions": torch.randn(2, 5, 3), "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1), "timesteps": torch.arange(5).expand(2, 5),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
    }  # fmt: skip
    return DecisionTransformerModel(config).eval(), given


@pytest.mark.parametrize("method", ["auto", "gae", "attn_lrp", "integrated_gradients"])
def test_hidden_states_do_not_stand_for_predictions(method):
    model, given = decisions()
    with pytest.raises(TargetError, match=r"last_hidden_state.*state_preds.*action_preds"):
        vitrail.explain(model, given, method, lambda y: y[:, -1, 0])
