from importlib.resources import files

import pytest
import torch
from browsing import chromium, visits
from safetensors.torch import load_file
from saved_models import save_vit
from served_page import served

from vitrail.apps.web import actions
from vitrail.apps.web.actions import Asked, House
from vitrail.apps.web.examples import first_given
from vitrail.apps.web.explaining import CHOSEN
from vitrail.apps.web.limits import Limits
from vitrail.apps.web.rooms import Room, Rooms
from vitrail.apps.web.shelf import Shelf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    torch.manual_seed(0)
    return str(save_vit(tmp_path_factory.mktemp("app") / "vit"))


@pytest.fixture(scope="session")
def pickled(tmp_path_factory):
    """A folder whose weights are pickled, and that has no others."""
    place = save_vit(tmp_path_factory.mktemp("app") / "pickled")
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    return str(place)


@pytest.fixture(scope="session")
def page(tiny, pickled):
    """The address of a page as `vitrail app` serves it, and what it writes to its terminal."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    with served("--allow", tiny, "--allow", pickled, "--max-upload", "1") as found:
        yield found


@pytest.fixture
def address(page):
    return page[0]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser, page):
    """A function that opens the page; at the end nobody else was asked, and neither browser nor server has failed."""
    address, lines = page
    before = len(lines)
    with visits(browser, address) as open_page:

        def open_here(*args, **more):
            opened = open_page(*args, **more)
            opened.goto(address)
            opened.wait_for_selector("#image-maps img")
            return opened

        yield open_here
    said = "".join(lines[before:])
    assert "Traceback" not in said, said


@pytest.fixture(scope="session")
def shelf(tiny):
    return Shelf([tiny])


@pytest.fixture(scope="session")
def known(shelf):
    """The examples, explained once for all tests."""
    house = House(shelf, Rooms(Room(first_given())), Limits())
    for kind, model in (("image", "photo"), ("text", "sentiment")):
        list(actions.explained(house, house.rooms.start, Asked(kind, model, None, CHOSEN[kind], "recommended")))
    return house.rooms.start


@pytest.fixture
def house(shelf, known):
    return House(shelf, Rooms(Rooms(known).of("start")), Limits())


@pytest.fixture
def room(house):
    return house.rooms.of("anna")


@pytest.fixture
def photo():
    return Asked("image", "photo", None, CHOSEN["image"], "recommended")


@pytest.fixture
def image(tiny):
    return Asked("image", tiny, None, ("gae", "complete_gradient"), "recommended")


@pytest.fixture
def text():
    return Asked("text", "sentiment", None, CHOSEN["text"], "recommended")


@pytest.fixture
def demo_picture():
    return str(files("vitrail.apps.demo").joinpath("pictures", "temple.jpg"))
