from importlib.resources import files

import pytest
import torch
from saved_models import save_vit

from vitrail.app import actions
from vitrail.app.actions import Asked, House
from vitrail.app.examples import first_given
from vitrail.app.explaining import CHOSEN
from vitrail.app.limits import Limits
from vitrail.app.rooms import Room, Rooms
from vitrail.app.shelf import Shelf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    torch.manual_seed(0)
    return str(save_vit(tmp_path_factory.mktemp("app") / "vit"))


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
    return str(files("vitrail.demo").joinpath("pictures", "temple.jpg"))
