"""Pictures of audio, tables and videos: what is drawn where, by the pixels and the parts of the figure."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from any_models import TABLE
from matplotlib.image import imread
from torch.testing import assert_close

import vitrail
from vitrail.attribution import Attribution
from vitrail.errors import InputError
from vitrail.plots.canvas import FOR, shade
from vitrail.plots.figures import OptionError, sound_figure
from vitrail.targets import logit

WAVE = ("0-3", "4-7", "8-11")
TABLE_OF_THREE = ("place 0", "place 1", "place 2")
FRAMES = tuple(f"frames {a}, rows {r}, columns 0-7" for a in ("0-1", "2-3") for r in ("0-3", "4-7"))
PATCHES = tuple(f"rows {a}, columns {b}" for a in ("0-3", "4-7") for b in ("0-1", "2-3"))


def made(kind, names, scores, *, signed=True):
    return Attribution(
        scores=torch.tensor([scores]), method="gae", target=logit(1), kind="text", signed=signed, tokens=(names,),
        provenance={"signal": kind},
    )  # fmt: skip


def test_frames_of_a_wave_are_shaded_where_they_are():
    figure = made("wave", WAVE, [1.0, 0.0, -0.5]).plot(torch.randn(1, 12))
    axes = figure.axes[1]
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]
    assert spans == [(0, 4), (4, 8), (8, 12)]
    assert axes.patches[0].get_facecolor()[:3] == pytest.approx([int(FOR[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert shade(-0.5) == "#" + "".join(f"{round(255 * x):02x}" for x in axes.patches[2].get_facecolor()[:3])
    assert len(axes.lines[0].get_xdata()) == 12


def test_long_waves_keep_their_peaks():
    values = torch.zeros(100_000)
    values[77_777] = 5.0
    names = tuple(f"{1000 * i}-{1000 * i + 999}" for i in range(100))
    line = made("wave", names, [0.01 * i for i in range(100)]).plot(values).axes[1].lines[0]
    assert len(line.get_xdata()) <= 2000
    assert max(line.get_ydata()) == 5.0
    assert abs(line.get_xdata()[np.argmax(line.get_ydata())] - 77_777) < 200


def test_a_sound_keeps_its_peaks_and_its_seconds():
    wave = torch.zeros(50_000)
    wave[12_501] = 0.7  # between two of every 25th samples
    attribution = made("wave", WAVE, [1.0, 0.0, 0.5])
    axes = sound_figure(attribution, SimpleNamespace(wave=wave, rate=10_000, seconds=30.0), "a click").axes[0]
    places, heights = axes.lines[0].get_data()
    assert max(heights) == pytest.approx(0.7)
    assert places[int(np.argmax(heights))] == pytest.approx(1.25, abs=0.01)
    assert max(places) == pytest.approx(5.0)


def test_a_table_has_a_bar_for_each_feature_with_its_value():
    figure = made("table", TABLE_OF_THREE, [2.0, -1.0, 0.5]).plot(torch.tensor([[1.5, 2.5, 3.5]]))
    assert [patch.get_width() for patch in figure.axes[1].patches] == [1.0, -0.5, 0.25]
    assert [text.get_text() for text in figure.texts[1:]] == ["feature 0 = 1.5", "feature 1 = 2.5", "feature 2 = 3.5"]


@pytest.mark.parametrize("given", [torch.rand(1, 4, 3, 8, 8), None])
def test_a_video_is_a_strip_of_frames(given):
    figure = made("video", FRAMES, [1.0, 0.0, 0.0, -1.0]).plot(given)
    maps = [axes.images[0].get_array() for axes in figure.axes[1:]]
    assert [m.shape for m in maps] == [(8, 8, 3)] * 2
    reddest = [[np.asarray(m[rows, :, 0] - m[rows, :, 2]).mean() for rows in (slice(4), slice(4, 8))] for m in maps]
    assert reddest[0][0] == max(x for pair in reddest for x in pair)
    assert reddest[1][1] == min(x for pair in reddest for x in pair)
    assert [text.get_text() for text in figure.texts[1:]] == ["frames 0-1", "frames 2-3"]


def test_a_spectrum_stands_above_its_map():
    figure = made("spectrum", PATCHES, [1.0, 0.0, 0.0, 0.5], signed=False).plot(torch.randn(8, 4))
    above, below = (axes.images[0].get_array() for axes in figure.axes[1:])
    assert above.shape == below.shape == (4, 8)
    expected = torch.zeros(8, 4)
    expected[:4, :2], expected[4:, 2:] = 1.0, 0.5
    assert_close(torch.as_tensor(np.asarray(below)), expected.T.contiguous())


@pytest.mark.parametrize(
    ("name", "kind"), [("audio/wav2vec2", "wave"), ("own/table", "table"), ("video/vivit", "video")]
)
def test_what_the_model_was_given_is_drawn_and_what_was_saved_is_drawn_without(name, kind, tmp_path):
    torch.manual_seed(0)
    entry = TABLE[name]
    model, inputs = entry.build().double().eval(), entry.inputs()
    found = vitrail.explain(model, inputs, "gae", 1)
    assert found.provenance["signal"] == kind
    first = found.to_html(index=0)
    assert "data:image/png" in first
    assert found.to_html(index=1) != first
    found.save(tmp_path / "kept.npz")
    again = vitrail.Attribution.load(tmp_path / "kept.npz")
    again.plot().savefig(tmp_path / "kept.png")
    assert imread(tmp_path / "kept.png").std() > 0.01


def test_what_does_not_fit_is_refused():
    wave = made("wave", WAVE, [1.0, 0.0, -0.5])
    with pytest.raises(InputError, match="a wave has 1 axes"):
        wave.plot(torch.randn(1, 3, 8, 8))
    with pytest.raises(OptionError, match="no style 'merge'"):
        wave.plot(merge=True)
    with pytest.raises(InputError, match="do not say which part"):
        made("wave", ("a", "b", "c"), [1.0, 0.0, -0.5]).plot()
