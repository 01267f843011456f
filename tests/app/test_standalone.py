"""The page without a server, in notebooks and files, and the one script that is joined from the page's modules."""

import gzip
import json
import re
import subprocess
import sys
from html import unescape
from importlib.resources import files

import numpy as np
import pytest
from browsing import needs_browser
from matplotlib import colormaps

import vitrail
from vitrail.apps.web import bundle
from vitrail.apps.web.downloads import PALETTES
from vitrail.errors import OptionError


@pytest.fixture
def maps(models, tiny):
    from PIL import Image

    loaded = models.open(tiny, "image").loaded
    sample = loaded.image(Image.radial_gradient("L").convert("RGB"))
    return sample, vitrail.compare(loaded.model, sample.inputs, ["gae", "attcat"])


def test_a_notebook_gets_a_frame_that_holds_everything(maps, tmp_path):
    sample, (gae, _) = maps
    page = gae.explore(sample.picture)
    shown = page._repr_html_()
    assert shown.startswith("<iframe")
    assert "http://" not in re.sub(r"http://www.w3.org/\S+", "", page.html)
    assert unescape(re.search(r'srcdoc="([^"]*)"', shown)[1]) == page.html
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1])
    assert data["maps"][0]["method"] == "gae"
    assert page.save(tmp_path / "gae.html").read_text() == page.html
    with pytest.raises(OptionError, match="no sample 3"):
        gae.explore(index=3)


def test_the_sample_that_is_asked_for_is_on_the_page(models):
    loaded = models.open("sentiment", "text").loaded
    texts = loaded.tokenizer(["a dull film", "a small but clever joke"], return_tensors="pt", padding=True)
    found = vitrail.explain(loaded.model, texts, "attcat", [0, 1])
    page = found.explore(index=1).html
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert "joke" in data["case"]["tokens"]["text"]
    assert data["case"]["target"]["name"] == "positive"
    assert data["parts"]["attcat"]["layers"]["shape"] == list(found.layers[1].shape)
    short = json.loads(re.search(r'id="data">(.*?)</script>', found.explore(index=0).html, re.DOTALL)[1])
    assert "[PAD]" not in short["case"]["tokens"]["text"]


@needs_browser
@pytest.mark.browser
def test_an_attribution_can_be_explored_without_its_picture_and_with_its_layers(browser, maps, tmp_path):
    sample, found = maps
    page = browser.new_context(offline=True).new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(found.explore(None).save(tmp_path / "both.html").as_uri())
    assert page.locator("[data-method=gae] canvas[role=img]").is_visible()
    page.get_by_role("tab", name="Layers").click()
    page.get_by_label("Map").last.select_option("attcat")
    assert page.locator(".tiles .tile").count() == found["attcat"].layers.shape[1]
    page.goto(found[0].explore(sample.picture).save(tmp_path / "one.html").as_uri())
    page.locator("[data-method=gae] canvas[role=img]").hover()
    assert "gae" in page.inner_text("p.pointed")
    assert wrong == []
    page.context.close()


def test_all_files_of_the_page_are_small():
    parts = (bundle.script(), bundle.style(), bundle.read("index.html"), bundle.read("icon.svg"))
    assert sum(len(gzip.compress(part.encode(), 9)) for part in parts) < 150_000


def test_the_page_names_no_other_host_and_needs_no_eval():
    own = bundle.script() + bundle.style() + bundle.read("index.html")
    hosts = set(re.findall(r"https?://([\w.-]+)", own)) - {"www.w3.org", "github.com"}  # a namespace and a comment
    assert hosts == set()
    assert "eval(" not in own
    assert "innerHTML" not in "".join(bundle.read(name) for name in ("page.js", "maps.js", "controls.js", "store.js"))


def test_every_panel_is_one_object_in_one_file_and_in_the_list():
    listed = re.findall(r'import \{(\w+)\} from "\./(\w+)\.js"', bundle.read("panels/index.js"))
    here = {path.name.removesuffix(".js") for path in files("vitrail.apps.web").joinpath("static", "panels").iterdir()}
    assert {file for _, file in listed} == here - {"index", "asking"}
    for name, file in listed:
        text = bundle.read(f"panels/{file}.js")
        assert re.search(
            rf'export const {name} = \{{id: "[\w-]+", title: "[^"]+", offline: (true|false), View(, fits)?\}};', text
        )
        assert not re.search(r'id: "what|=== "remove"', bundle.read("page.js"))  # the page knows no panel by name


def test_modules_in_a_circle_are_said_so(monkeypatch):
    files = {"main.js": 'import {a} from "./a.js";', "a.js": 'import {b} from "./main.js";\nexport const a = 1;'}
    monkeypatch.setattr(bundle, "read", files.__getitem__)
    bundle.script.cache_clear()
    with pytest.raises(ImportError, match=r"circle: main.js > a.js > main.js"):
        bundle.script()
    bundle.script.cache_clear()


@pytest.mark.parametrize("name", sorted({name for pair in PALETTES.values() for name in pair}))
def test_the_colours_of_the_page_are_those_of_the_files(name):
    text = re.search(rf'  {name}: "([0-9a-f]+)"', bundle.read("colours.js"))[1]
    stops = np.array([int(text[i : i + 2], 16) for i in range(0, len(text), 2)]).reshape(-1, 3)
    expected = colormaps[name](np.linspace(0, 1, len(stops)))[:, :3] * 255
    assert np.abs(stops - expected).max() <= 0.51
    for palette, (sequential, diverging) in PALETTES.items():
        assert f'{palette}: {{sequential: "{sequential}", diverging: "{diverging}"}}' in bundle.read("colours.js")


def test_the_page_is_served_before_torch_is_imported():
    code = "import sys, vitrail.apps.cli.pages, vitrail.apps.web.routes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
