from layers import run, stack
from torch.testing import assert_close

from vitrail.methods import attcat, grad_cam


def test_grads_is_the_mean_gradient_of_the_last_layer_signed():
    layers = stack()
    found = run(attcat.build_grads(), layers).scores
    assert_close(found, layers[-1].probs_grad.mean(dim=(1, 2)))
    assert bool((found < 0).any())
    assert_close(run(attcat.build_grads(rows="readout"), layers).scores, layers[-1].probs_grad.mean(dim=1)[:, 0])


def test_att_grads_is_the_mean_over_all_layers_of_the_positive_product():
    layers = stack()
    maps = [(one.probs * one.probs_grad.clamp(min=0)).mean(dim=1) for one in layers]
    assert_close(run(grad_cam.build_att_grads(), layers).scores, sum(m.mean(dim=1) for m in maps) / 3)
    assert_close(run(grad_cam.build_att_grads(rows="readout"), layers).scores, sum(m[:, 0] for m in maps) / 3)
