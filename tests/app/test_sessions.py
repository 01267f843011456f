"""Sessions, quotas, queues and limits without a server."""

import threading
import time
from io import BytesIO

import pytest
from bombs import bomb
from PIL import Image

from vitrail.apps import demo
from vitrail.apps.web import BusyError, GoneError, Limits, TooLargeError, UnknownSessionError
from vitrail.apps.web import sessions as kept
from vitrail.apps.web.explaining import Results, read_picture, read_text
from vitrail.apps.web.sessions import Sessions
from vitrail.apps.web.workers import QUICK, SLOW, Job, Stopped, Workers
from vitrail.errors import InputError


@pytest.fixture
def sessions():
    made = Sessions(Limits(inputs=3, visitor_store=100, store=150, sessions=2, idle=1000.0))
    yield made
    made.close()


def test_the_oldest_input_of_a_visitor_goes_first_and_its_file_with_it(sessions):
    anna = sessions.new()
    names = [sessions.add_picture(anna, bytes([i]) * 40) for i in range(3)]
    assert len(list(sessions.folder.iterdir())) == 2
    assert sessions.stored == 80
    with pytest.raises(GoneError, match="hand it in again"):
        anna.get(names[0])
    assert sessions.add_picture(anna, bytes([2]) * 40) == names[2]  # the same file is kept once
    for i in range(9):
        sessions.add_text(anna, str(i))
    assert len(anna.inputs) == 3


def test_the_quota_of_all_visitors_holds_and_a_file_above_it_is_refused(sessions):
    anna, ben = sessions.new(), sessions.new()
    first = sessions.add_picture(anna, b"a" * 90)
    sessions.add_picture(ben, b"b" * 90)
    assert sessions.stored <= 150
    with pytest.raises(GoneError):
        anna.get(first)
    with pytest.raises(TooLargeError, match="one visitor may keep"):
        sessions.add_picture(anna, b"c" * 101)


def test_an_unused_visitor_is_forgotten_and_one_at_work_is_not(sessions):
    anna, ben = sessions.new(), sessions.new()
    anna.jobs["a"] = Job(anna.id)
    sessions.new()
    assert sessions.get(anna.id) is anna
    with pytest.raises(UnknownSessionError, match="load the page again"):
        sessions.get(ben.id)
    sessions.get(anna.id).jobs["b"] = Job(anna.id)
    with pytest.raises(UnknownSessionError):
        sessions.get(None)


def test_nothing_is_left_when_the_server_ends(sessions):
    sessions.add_picture(sessions.new(), b"x")
    sessions.close()
    assert not sessions.folder.exists()


def test_results_stay_within_their_bytes():
    import torch

    kept = Results(100_000)
    for i in range(50):
        kept.put(i, torch.zeros(2_000))
    assert kept.size <= 100_000
    assert kept.get(0) is None
    assert kept.put("large", torch.zeros(10**6)) is not None
    assert kept.get("large") is None


def test_a_full_queue_refuses_and_a_visitor_fills_only_half_of_it():
    workers, go = Workers(4, 9), threading.Event()
    futures = [workers.submit(SLOW, Job("anna"), go.wait) for _ in range(2)]
    with pytest.raises(BusyError, match="busy"):
        workers.submit(SLOW, Job("anna"), go.wait)
    futures += [workers.submit(SLOW, Job(name), go.wait) for name in ("ben", "cleo")]
    with pytest.raises(BusyError):
        workers.submit(SLOW, Job("dora"), go.wait)
    assert workers.submit(QUICK, Job("dora"), lambda: 7).result(60) == 7  # other work does not wait
    futures[-1].cancel()
    assert workers.held(SLOW) == 3
    go.set()
    assert [future.result(60) for future in futures[:3]] == [True] * 3
    for _ in range(6000):
        if workers.held(SLOW) == 0:
            break
        time.sleep(0.01)
    assert workers.held(SLOW) == 0
    workers.close()


def test_a_stopped_or_late_job_does_not_run():
    workers, job = Workers(4, 4), Job("anna")
    job.stop.set()
    with pytest.raises(Stopped):
        workers.submit(QUICK, job, lambda: 1).result(60)
    with pytest.raises(BusyError, match="longer than the server allows"):
        workers.submit(QUICK, Job("anna", deadline=0.0), lambda: 1).result(60)
    workers.close()


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\nnothing", b"GIF89a", b"\xff\xd8\xff\xe0cut"])
def test_what_is_no_picture_is_said_so(data):
    with pytest.raises(InputError, match=r"not a picture|damaged"):
        read_picture(data, Limits())


def test_a_picture_is_refused_by_its_header_before_it_is_decoded():
    with pytest.raises(InputError, match=r"60000 x 60000 pixels|too large to open"):
        read_picture(bomb(60_000, 60_000), Limits())
    sink = BytesIO()
    Image.new("I;16", (1200, 1000)).save(sink, "PNG")
    with pytest.raises(InputError, match="at most 1 million"):  # sixteen bits take more memory
        read_picture(sink.getvalue(), Limits(pixels=4 * 10**6))
    with pytest.raises(InputError, match="at most 1 MB"):
        read_picture(bytes(2**21), Limits(upload=2**20))


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b\u200b", "x" * 1001, "half \ud800 a letter"])
def test_a_text_that_cannot_be_explained_is_said_so(text):
    with pytest.raises(InputError):
        read_text(text, Limits())


def test_the_examples_are_those_of_the_demo():
    assert tuple(kept.TEXTS.values()) == (*demo.SENTENCES, demo.QUESTION)
    assert [f"{name}.jpg" for name in kept.PICTURES] == list(demo.PICTURES)
    with Image.open(kept.PATHS["temple"]) as picture:
        assert picture.size[0] == picture.size[1]
