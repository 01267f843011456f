"""Relevance in equals relevance out, layer by layer, where the rules promise it."""

import pytest
import torch
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

from vitrail import targets
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import ComputeSettings, PassOptions, Wanted
from vitrail.methods.transformer_attribution import CONSERVING, ORIG, linear
from vitrail.models.inputs import read_inputs
from vitrail.relevance.lrp import RuleSet, propagating


def bias_free(name):
    torch.manual_seed(11)
    model = MODELS[name].build().double().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def relevance_between_blocks(model, inputs, table):
    """The sum of relevance entering every block, first to last, and leaving the last one, for each sample."""

    def within(model, capture):
        return propagating(table, model, capture)

    pass_options = PassOptions(level="embedding_output", within=within)
    read = read_inputs(inputs)
    with forward(model, read, find_body(model, None, read), Wanted(), ComputeSettings(), pass_options) as run:
        (part,) = run.parts(targets.logit([0, 2]))
        streams = [captured.states["entering"] for captured in run.captured] + [run.captured[-1].states["leaving"]]
        found = torch.autograd.grad(part.scalar.sum(), streams)
    return [x.sum(dim=(1, 2)) for x in found]


@pytest.mark.parametrize("name", ["timm_vit", "hf_vit", "hf_bert", "hf_roberta"])
def test_the_conserving_rules_conserve_layer_by_layer(name):
    sums = relevance_between_blocks(bias_free(name), MODELS[name].inputs(), CONSERVING)
    for total in sums:
        # The 1e-9 in each division loses a little, more where denominators are small.
        assert_close(total, torch.ones(2).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert"])
def test_with_biases_the_residual_stays_small(name):
    sums = relevance_between_blocks(tiny(name), MODELS[name].inputs(), CONSERVING)
    assert float((sums[0] - 1).abs().max()) < 1e-6  # biases take no part in these rules


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert"])
def test_the_original_rules_make_more_of_it(name):
    sums = relevance_between_blocks(bias_free(name), MODELS[name].inputs(), ORIG)
    assert float((sums[0] - 1).abs().min()) > 0.1


def test_a_rule_halved_is_noticed():
    def halved(relevance, x, weight, product):
        from vitrail.methods.transformer_attribution import conserving_linear

        return conserving_linear(relevance, x, weight, product) / 2

    table = RuleSet("halved", {**CONSERVING.rules, "linear": linear(halved)}, fork=CONSERVING.fork)
    sums = relevance_between_blocks(bias_free("timm_vit"), MODELS["timm_vit"].inputs(), table)
    assert float((sums[0] - 1).abs().max()) > 0.1
