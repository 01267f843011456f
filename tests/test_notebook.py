"""A notebook without magic shows pictures: a kernel executes it, and a browser shows the page made of it."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from browsing import chromium, needs_browser
from PIL import Image

import vitrail

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed")

CELLS = {
    "setup": "import vitrail\nphoto = vitrail.zoo.load_plain('photo')\npicture = vitrail.zoo.example('golf_ball')",
    "attribution": "found = vitrail.explain(photo, picture, 'gae')\nfound",
    "plot": "found.plot()",
    "comparison": "vitrail.compare(photo, picture, ['gae', 'rollout'])",
    "text": "vitrail.explain('sentiment', 'a small miracle of a film', 'attcat')",
    "sentence": "vitrail.explain('sentiment', 'a small miracle of a film', 'attcat').plot()",
    "recording": "vitrail.record('photo', photo.preprocess(picture))",
    "transfer": "vitrail.transfer(photo.model, photo.preprocess(picture), steps=1)",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The executed notebook."""
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source, id=name) for name, source in CELLS.items()]
    source = str(Path(vitrail.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
        folder = tmp_path_factory.mktemp("notebook")
        nbclient.NotebookClient(made, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return made


def shown(notebook, name):
    """What a cell shows, by kind."""
    (cell,) = (cell for cell in notebook.cells if cell.id == name)
    (output,) = (output for output in cell.outputs if output.output_type == "execute_result")
    return output.data


@pytest.mark.slow
def test_every_result_has_a_picture_or_a_short_line(notebook):
    assert "data:image/png;base64," in shown(notebook, "attribution")["text/html"]
    assert "golf ball, 98" in shown(notebook, "attribution")["text/html"]
    assert "image/png" in shown(notebook, "plot")
    assert "data:image/png;base64," in shown(notebook, "comparison")["text/html"]
    assert "positive, 99.9%" in shown(notebook, "text")["text/html"]
    assert "image/png" in shown(notebook, "sentence")
    for name in ("attribution", "comparison", "text", "recording", "transfer"):
        assert len(shown(notebook, name)["text/plain"]) < 160


@pytest.mark.slow
def test_nothing_but_results_is_printed(notebook):
    said = "".join(o.get("text", "") for cell in notebook.cells for o in cell.outputs if o.output_type == "stream")
    assert [line for line in said.splitlines() if "vitrail" in line or "_pytree" in line] == []


@pytest.mark.slow
@pytest.mark.browser
@needs_browser
def test_the_picture_in_the_browser_is_the_photograph_below_the_map(notebook, tmp_path):
    page = tmp_path / "notebook.html"
    page.write_text(nbconvert.HTMLExporter().from_notebook_node(notebook)[0])
    with chromium() as browser:
        tab = browser.new_context(viewport={"width": 1000, "height": 900}, java_script_enabled=False).new_page()
        tab.goto(page.as_uri())
        pictures = tab.locator("img").all()
        taken = [np.asarray(Image.open(io.BytesIO(one.screenshot())).convert("RGB"), float) for one in pictures]
    assert len(taken) == 4  # attribution, plot, comparison, sentence
    for one in taken[:2]:
        height, width, _ = one.shape
        assert min(height, width) > 200
        inside = one[height // 4 : height // 2, width // 4 : 3 * width // 4]
        assert inside.std(axis=(0, 1)).min() > 10  # neither blank nor of one colour
        corner = one[height // 6 : height // 5, width // 5 : width // 4].mean(axis=(0, 1))
        assert corner[1] > corner[2]  # the lawn of the photograph is seen where the map is low
