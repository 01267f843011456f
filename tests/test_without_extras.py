"""Where an optional package is absent, an error of ours says what to install, and notebooks show text."""

import importlib
import sys

import pytest
import torch
from torch import nn

import vitrail
from vitrail import Attribution, Comparison, targets
from vitrail.errors import MissingExtraError, NoAttentionError


def image():
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0, 5.0, 4.0]])
    return Attribution(scores, "gae", targets.logit(3), "image", grid=(2, 3), size=(8, 12))


def text():
    return Attribution(torch.rand(1, 2), "gae", targets.logit(3), "text", tokens=(("a", "b"),))


def absent(monkeypatch, *names):
    """As if these packages were not installed."""
    for name in names:
        for known in [known for known in sys.modules if known.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, known)
        monkeypatch.setitem(sys.modules, name, None)


DRAWN = {
    "plot": lambda: image().plot(),
    "sentence": lambda: text().plot(),
    "sheet": lambda: Comparison([image(), image()]).plot(),
    "sentences": lambda: Comparison([text(), text()]).plot(),
    "layers": lambda: vitrail.plots.layer_heatmap(Attribution(**{**vars(text()), "layers": torch.rand(1, 3, 2)})),
    "page": lambda: image().to_html(),
}


@pytest.mark.parametrize("door", DRAWN.values(), ids=DRAWN)
def test_pictures_name_the_extra(monkeypatch, door):
    absent(monkeypatch, "matplotlib")
    vitrail.plots.canvas.text_width.cache_clear()
    vitrail.plots.canvas.font.cache_clear()
    vitrail.plots.canvas._figure_class.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[plots\]'"):
        door()


def test_notebooks_show_text_where_pictures_cannot_be_drawn(monkeypatch):
    assert "<img" in image()._repr_html_()
    absent(monkeypatch, "matplotlib")
    assert image()._repr_html_() is None
    assert Comparison([image(), image()])._repr_html_() is None
    assert "<span" in text()._repr_html_()


@pytest.mark.parametrize("made", [image(), Comparison([image()])], ids=["one", "several"])
def test_the_page_names_the_extra(monkeypatch, made):
    absent(monkeypatch, "cachetools")
    for name in [name for name in sys.modules if name.startswith("vitrail.apps.web")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"cachetools: pip install 'vitrail\[app\]'"):
        made.explore()


def test_a_public_name_says_what_it_needs(monkeypatch):
    def lacking(name):
        raise ModuleNotFoundError("No module named 'filelock'", name="filelock")

    monkeypatch.setattr(vitrail, "import_module", lacking)
    for name in ("bench", "audit"):
        monkeypatch.delitem(vars(vitrail), name, raising=False)
        with pytest.raises(MissingExtraError, match=rf"vitrail.{name} needs filelock.*pip install"):
            getattr(vitrail, name)


def test_pictures_are_read_with_an_extra(monkeypatch):
    for name in ("vitrail.models.loading.images", "vitrail.models.zoo.photo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    absent(monkeypatch, "PIL")
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[plots\]'"):
        importlib.import_module("vitrail.models.zoo.photo")


def test_the_refusal_of_a_network_without_attention_names_a_method_that_works():
    own = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model, pictures = own.eval(), torch.randn(2, 3, 32, 32)
    with pytest.raises(NoAttentionError, match="'integrated_gradients'"):
        vitrail.explain(model, pictures)
    assert vitrail.explain(model, pictures, "integrated_gradients").pixels.shape == (2, 32, 32)
    assert vitrail.explain(model, pictures, "input_x_gradient").pixels.shape == (2, 32, 32)
