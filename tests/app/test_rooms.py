"""Visitors are apart, and nobody's table grows without end."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep

import pytest
from saved_models import save_bert, save_vit

from vitrail.apps.web.rooms import Given, Recent, Room, Rooms
from vitrail.apps.web.shelf import OPEN, Shelf
from vitrail.errors import ModelError
from vitrail.models.loading import load


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


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A shelf of a model that loads quickly and one whose load waits for an event, and how often each was loaded."""
    quick, late = str(tmp_path / "quick"), str(tmp_path / "late")
    save_vit(tmp_path / "quick")
    save_vit(tmp_path / "late")
    begun, go, loads = Event(), Event(), []

    def loading(name, **options):
        loads.append(name)
        if name == late:
            begun.set()
            assert go.wait(20)
        return load(name, **options)

    monkeypatch.setattr("vitrail.apps.web.shelf.load", loading)
    shelf = Shelf([quick, late])
    shelf.open(quick, "image")
    yield shelf, quick, late, begun, go, loads
    go.set()


def test_a_model_that_is_loaded_is_there_while_another_one_loads(slow):
    shelf, quick, late, begun, go, loads = slow
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(shelf.open, late, "image")
        assert begun.wait(20)
        assert pool.submit(shelf.open, quick, "image").result(5).loaded.name == quick
        assert late in pool.submit(shelf.names, "image").result(5)
        assert not waiting.done()
        go.set()
        assert waiting.result(20).loaded.name == late
    assert loads == [quick, late]


def test_visitors_who_ask_for_the_same_model_wait_for_one_load(slow):
    shelf, quick, late, begun, go, loads = slow
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(shelf.open, late, "image") for _ in range(4)]
        assert begun.wait(20)
        sleep(0.1)  # so that all of them stand there
        go.set()
        found = {id(one.result(20)) for one in waiting}
    assert len(found) == 1
    assert loads == [quick, late]


def test_a_load_that_fails_keeps_nobody_waiting(monkeypatch):
    def fail(name, **options):
        raise ModelError("no such model")

    monkeypatch.setattr("vitrail.apps.web.shelf.load", fail)
    shelf = Shelf(["a"])
    for _ in range(2):
        with pytest.raises(ModelError, match="no such model"):
            shelf.open("a", "image")
