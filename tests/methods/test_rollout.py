import pytest
import torch
from layers import B, T, run, stack
from torch.testing import assert_close

from vitrail.errors import OptionError
from vitrail.methods import rollout


def matrices(layers):
    return [(one.probs.mean(dim=1) + torch.eye(T, dtype=torch.float64)) for one in layers]


def test_rollout_is_the_product_of_row_normalised_matrices():
    layers = stack()
    product = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    for matrix in matrices(layers):
        product = matrix / matrix.sum(dim=2, keepdim=True) @ product
    assert_close(run(rollout.build(), layers).scores, product[:, 0])


def test_without_normalisation_rollout_is_larger_by_two_to_the_number_of_layers():
    layers = stack(depth=4)
    product = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    for matrix in matrices(layers):
        product = matrix @ product
    assert_close(product[:, 0], 2**4 * run(rollout.build(), layers).scores)


def test_rollout_conserves_what_it_starts_with():
    assert_close(run(rollout.build(), stack()).scores.sum(dim=1), torch.ones(B, dtype=torch.float64))


def test_start_layer_skips_the_layers_below_it():
    layers = stack()
    shorter = [layer for layer in layers if layer.index >= 1]
    product = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    for matrix in matrices(shorter):
        product = matrix / 2 @ product
    assert_close(run(rollout.build(start_layer=1), layers).scores, product[:, 0])


def test_a_start_layer_the_model_does_not_have_is_an_error():
    with pytest.raises(OptionError, match="layers are 0 to 2"):
        run(rollout.build(start_layer=3), stack())


def test_raw_attention_is_the_last_layers_row_or_its_column_mean():
    layers = stack()
    assert_close(run(rollout.build_raw(), layers).scores, layers[-1].probs.mean(dim=1)[:, 0])
    columns = layers[-1].probs.mean(dim=(1, 2))
    assert_close(run(rollout.build_raw(rows="mean"), layers).scores, columns)


def test_zero_readout_clears_the_readouts_own_entry_only():
    layers = stack()
    plain, cleared = (run(rollout.build_raw(zero_readout=z), layers).scores for z in (False, True))
    assert_close(cleared[:, 1:], plain[:, 1:])
    assert_close(cleared[:, 0], torch.zeros(B, dtype=torch.float64))
