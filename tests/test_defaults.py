"""What explains when nobody names a method."""

import logging

import pytest
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import MethodError, OptionError, RuleError
from vitrail.methods import consensus


def explain(name, **given):
    return vitrail.explain(tiny(name), MODELS[name].inputs(), target=1, **given)


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert"])
def test_it_is_consensus_where_that_applies(name, caplog):
    found = explain(name)
    assert found.method == "consensus"
    assert "default" not in found.provenance
    assert not [record for record in caplog.records if record.name == "vitrail"]
    assert_close(found.scores, explain(name, method="consensus").scores)


def test_it_is_gae_where_consensus_does_not_apply_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, "vitrail"):
        found = explain("hf_clip")
    assert found.method == "gae"
    assert "attn_lrp" in found.provenance["default"]
    assert caplog.text.count("gae explains") == 1
    assert_close(found.scores, explain("hf_clip", method="gae").scores)


def test_a_missing_rule_is_met_on_the_way_and_gae_stands_in(monkeypatch):
    def nowhere(pooled, runner):
        raise RuleError("no rule for this operation")

    monkeypatch.setattr(consensus.Pooled, "explain", nowhere)
    found = explain("hf_vit")
    assert (found.method, found.provenance["default"]) == ("gae", "no rule for this operation")
    with pytest.raises(RuleError, match="no rule for this"):
        explain("hf_vit", method="consensus")


def test_a_preset_that_only_gae_has_is_gaes():
    assert explain("hf_vit", preset="official").method == "gae"
    assert explain("hf_vit", preset="fine", radius=2).pixels is not None


def test_options_are_those_of_consensus_so_nothing_can_stand_in():
    assert explain("hf_vit", power=1.0).options["power"] == 1.0
    with pytest.raises(OptionError, match="consensus has no option 'start_layer'"):
        explain("hf_vit", start_layer=1)
    with pytest.raises(MethodError, match="attn_lrp"):
        explain("hf_clip", power=1.0)


def test_others_can_be_compared_with_it():
    found = vitrail.compare(tiny("hf_vit"), MODELS["hf_vit"].inputs(), ["auto", "rollout"], 1)
    assert [a.method for a in found] == ["consensus", "rollout"]


CONTRAST_BOTH_WAYS = targets.difference(1, 0), targets.difference(0, 1)
CONTRASTS = [targets.difference(1, 0), targets.relative_difference(1, 0), targets.ratio(1, 0)]


@pytest.mark.parametrize("target", CONTRASTS, ids=str)
@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_clip", "hf_gpt2", "own_pre_norm"])
def test_a_contrast_is_explained_with_signs(name, target):
    found = vitrail.explain(tiny(name), MODELS[name].inputs(), target=target)
    assert found.signed


def test_evidence_for_the_other_class_is_below_zero():
    """The default says of a contrast the opposite of the contrast the other way round."""
    one, other = (vitrail.explain(tiny("hf_vit"), MODELS["hf_vit"].inputs(), target=x) for x in CONTRAST_BOTH_WAYS)
    assert_close(one.scores, -other.scores, atol=1e-5, rtol=1e-4)
    assert one.label == "consensus(preset=contrast)"


def test_a_contrast_with_options_or_a_preset_is_explained_as_it_was_asked_for():
    for given in ({"preset": "fine", "radius": 2}, {"power": 1.0}):
        found = vitrail.explain(tiny("hf_vit"), MODELS["hf_vit"].inputs(), target=CONTRASTS[0], **given)
        assert (found.method, found.signed) == ("consensus", False)


def test_where_consensus_does_not_apply_a_contrast_is_explained_with_signs_too(monkeypatch):
    def nowhere(pooled, runner):
        raise RuleError("no rule for this operation")

    monkeypatch.setattr(consensus.Pooled, "explain", nowhere)
    for name in ("hf_vit", "hf_bert"):
        found = vitrail.explain(tiny(name), MODELS[name].inputs(), target=CONTRASTS[0])
        assert (found.method, found.signed) == ("complete_gradient", True)
        assert found.provenance["default"] == "no rule for this operation"
