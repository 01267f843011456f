"""What Gradio's events do when several are under way; the request is a visitor's name."""

from dataclasses import replace

import pytest

gr = pytest.importorskip("gradio", reason="gradio is not installed")
from vitrail.apps.web import actions  # noqa: E402
from vitrail.apps.web.asking import STOPPED, Desk  # noqa: E402
from vitrail.apps.web.events import Events  # noqa: E402
from vitrail.apps.web.jobs import Stopped  # noqa: E402
from vitrail.apps.web.panel_events import PanelEvents  # noqa: E402

ANNA, BAR = gr.Request(session_hash="anna"), gr.Progress()
LOOK = ("recommended", 0.6, "Fire")


@pytest.fixture
def events(house):
    desk = Desk(house, "image")
    return Events(desk, PanelEvents(desk))


def is_skip(update):
    return update == gr.skip()


def test_what_takes_longer_follows_and_comes_to_the_class_that_is_shown(events, tiny):
    asked = (tiny, None, ["gae", "attn_lrp"], *LOOK)
    first = events.explain(ANNA, BAR, "gae", *asked)
    assert "still computing" in first[3]
    trouble, maps = events.rest(ANNA, BAR, *asked)
    assert is_skip(trouble)
    assert maps.count("<img") == 3
    assert [is_skip(one) for one in events.rest(ANNA, BAR, tiny, None, ["gae"], *LOOK)] == [True, True]


def test_maps_that_nobody_waits_for_any_more_are_not_shown(events, tiny):
    asked = (tiny, None, ["gae", "attn_lrp"], *LOOK)
    events.explain(ANNA, BAR, "gae", *asked)
    events.explain(ANNA, BAR, "gae", tiny, None, ["gae"], *LOOK)
    assert all(map(is_skip, events.rest(ANNA, BAR, *asked)))
    events.explain(ANNA, BAR, "gae", *asked)
    said, left = events.stop(ANNA, *asked)
    assert STOPPED in said
    assert "stopped" in left
    assert all(map(is_skip, events.rest(ANNA, BAR, *asked)))


def test_a_new_question_ends_the_old_job_of_its_own_tab_only(events, tiny, house):
    room = house.rooms.of("anna")
    image, text = room.stop_of("image"), room.stop_of("text")
    events.explain(ANNA, BAR, "gae", tiny, None, ["gae"], *LOOK)
    assert (image.is_set(), text.is_set()) == (True, False)
    events.leave(ANNA)
    assert text.is_set()


def test_colours_that_change_meanwhile_are_those_of_the_map_that_comes(events, tiny):
    asked = (tiny, None, ["gae", "attn_lrp"])
    events.explain(ANNA, BAR, "gae", *asked, *LOOK)
    before = events.redraw(ANNA, *asked, "recommended", 0.1, "Sea")
    assert "still computing" in before
    _, maps = events.rest(ANNA, BAR, *asked, *LOOK)
    assert maps == events.redraw(ANNA, *asked, "recommended", 0.1, "Sea")


def test_an_error_stays_when_there_is_nothing_more_to_come(events, tmp_path, tiny):
    (tmp_path / "cat.png").write_bytes(b"no picture")
    asked = ("photo", "8", ["consensus", "gae"], *LOOK)
    trouble, *others = events.new(ANNA, BAR, {"path": str(tmp_path / "cat.png")}, "gae", *asked)
    assert "no picture" in trouble
    assert all(map(is_skip, others))
    assert all(map(is_skip, events.rest(ANNA, BAR, *asked)))


def test_a_choice_of_a_moment_ago_is_no_error(events, tiny):
    events.explain(ANNA, BAR, "gae", tiny, "99", ["gae"], *LOOK)
    shown = events.panels.between(ANNA, "99", None, tiny, "99", ["gae"], *LOOK)
    assert "rather than" in shown
    assert "no method" in events.panels.layer(ANNA, "plaid", 1, tiny, None, ["gae"], *LOOK)[0]
    assert "no method" in events.panels.heads(ANNA, "plaid", tiny, None, ["gae"], *LOOK)
    assert "no method" in events.panels.remove(ANNA, BAR, "plaid", "black", 10, tiny, None, ["gae"], *LOOK)


def test_maps_of_a_class_that_is_no_longer_shown_are_left_out(events, tiny, house, monkeypatch):
    asked = (tiny, None, ["gae", "attn_lrp"], *LOOK)
    other = int(events.explain(ANNA, BAR, "gae", *asked)[2]["choices"][1][1])
    real, room = actions.explained, house.rooms.of("anna")

    def explained(*args):
        yield from real(*args)
        room.asked["image"] = replace(room.asked["image"], target=other)

    monkeypatch.setattr(actions, "explained", explained)
    assert all(map(is_skip, events.rest(ANNA, BAR, *asked)))


def test_colours_change_on_the_maps_of_the_class_that_is_shown(events, tiny):
    other = events.explain(ANNA, BAR, "gae", tiny, None, ["gae"], *LOOK)[2]["choices"][1][1]
    shown = events.explain(ANNA, BAR, "gae", tiny, other, ["gae"], *LOOK)[3]
    assert events.redraw(ANNA, tiny, None, ["gae"], *LOOK) == shown


def test_stopping_between_two_jobs_ends_those_that_would_follow(events, tiny, house, monkeypatch):
    asked = (tiny, None, ["gae", "attn_lrp", "lrp"], *LOOK)
    events.explain(ANNA, BAR, "gae", *asked)
    real, room, steps = actions.explained, house.rooms.of("anna"), []

    def explained(*args):
        for step in real(*args):
            steps.append(step)
            room.halt("image")
            yield step

    monkeypatch.setattr(actions, "explained", explained)
    assert all(map(is_skip, events.rest(ANNA, BAR, *asked)))
    assert len(steps) == 1


def test_a_download_that_is_ended_is_said_so(events, tiny, monkeypatch):
    def ended(*args):
        raise Stopped

    monkeypatch.setattr(actions, "download", ended)
    file, said = events.panels.download(ANNA, "png", tiny, None, ["gae"], *LOOK)
    assert file is None
    assert STOPPED in said
