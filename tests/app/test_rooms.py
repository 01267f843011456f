"""Visitors are apart, and nobody's table grows without end."""

import pytest
from saved_models import save_bert, save_vit

from vitrail.app.rooms import Given, Recent, Room, Rooms
from vitrail.app.shelf import OPEN, Shelf
from vitrail.errors import ModelError


def test_a_table_forgets_what_was_longest_not_used():
    table = Recent(2)
    table.put("a", 1)
    table.put("b", 2)
    table.get("a")
    table.put("c", 3)
    assert [table.get(key) for key in "abc"] == [1, None, 3]
    assert len(table) == 2


def test_what_one_visitor_does_another_does_not_see():
    rooms = Rooms(Room({"text": Given("text", "start")}))
    anna, ben = rooms.of("anna"), rooms.of("ben")
    anna.given["text"] = Given("text", "secret")
    anna.maps.put("key", "secret")
    assert ben.given["text"].data == rooms.of("cleo").given["text"].data == "start"
    assert "key" not in ben.maps
    assert "key" not in rooms.of("cleo").maps
    assert rooms.of("anna") is anna


def test_there_are_only_so_many_rooms():
    rooms = Rooms(Room({}), most=3)
    first = rooms.of("0")
    for visitor in range(1, 5):
        rooms.of(str(visitor))
    assert len(rooms) == 3
    assert rooms.of("0") is not first


def test_only_allowed_models_are_opened(tmp_path):
    save_vit(tmp_path / "vit")
    name = str(tmp_path / "vit")
    with pytest.raises(ModelError, match="--allow"):
        Shelf().open(name, "image")
    shelf = Shelf([name])
    assert shelf.open(name, "image").loaded.kind == "image"
    assert shelf.names("image") == ["photo", name]
    assert shelf.names("text") == ["sentiment"]
    assert Shelf(any_model=True).open(name, "image").loaded.classes == 4


def test_a_model_of_the_other_kind_is_said_so(tmp_path):
    save_bert(tmp_path / "bert")
    with pytest.raises(ModelError, match="reads text, not pictures"):
        Shelf([str(tmp_path / "bert")]).open(str(tmp_path / "bert"), "image")


def test_only_a_few_models_stay_loaded(tmp_path):
    names = [str(tmp_path / f"bert{number}") for number in range(OPEN + 1)]
    for name in names:
        save_bert(tmp_path / name)
    shelf = Shelf(names)
    first = shelf.open(names[0], "text")
    assert shelf.open(names[0], "text") is first
    for name in names[1:]:
        shelf.open(name, "text")
    assert shelf.open(names[0], "text") is not first


def test_pickled_weights_are_refused_unless_a_flag_says_otherwise(pickled):
    with pytest.raises(ModelError, match="could not be loaded"):
        Shelf([pickled]).open(pickled, "image")
    assert Shelf([pickled], pickles=True).open(pickled, "image").loaded.classes == 4
