"""A progress bar appears on a terminal if a run takes long, and changes nothing."""

import io
from contextlib import redirect_stderr

import pytest
import torch

import vitrail
from vitrail.methods import options


class Screen(io.StringIO):
    def __init__(self, *, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(options, "DELAY", 0.0)


def shown(*, show=True, terminal=True):
    with redirect_stderr(Screen(terminal=terminal)) as screen:
        assert list(options.show_progress([3, 1, 2], "masks", show=show)) == [3, 1, 2]
    return screen.getvalue()


def test_a_long_run_shows_a_bar():
    assert "masks" in shown()


def test_a_short_run_shows_nothing(monkeypatch):
    monkeypatch.setattr(options, "DELAY", 60.0)
    assert shown() == ""


def test_it_can_be_switched_off():
    assert shown(show=False) == ""


def test_a_file_gets_no_bar():
    assert shown(terminal=False) == ""


def test_an_error_takes_the_bar_down():
    with redirect_stderr(Screen()) as screen:
        steps = options.show_progress([1, 2], "masks", show=True)
        next(steps)
        with pytest.raises(RuntimeError, match="mine"):
            steps.throw(RuntimeError("mine"))
    assert screen.getvalue().endswith("\r")  # the line is cleared


LONG = {
    "integrated_gradients": ("photo", {"steps": 4, "batch": 1}, "points of a path"),
    "dix": ("photo", {"steps": 2}, "dix, block"),
    "leave_one_out": ("sentiment", {"batch": 2}, "ablations"),
}


@pytest.mark.parametrize("name", LONG)
def test_methods_that_run_the_model_often_say_what_they_do(name):
    model, given, words = LONG[name]
    inputs = vitrail.zoo.example() if model == "photo" else "a small miracle of a film"
    with redirect_stderr(Screen()) as screen:
        shown = vitrail.explain(model, inputs, name, **given)
    assert words in screen.getvalue()
    with redirect_stderr(Screen(terminal=False)) as screen:
        hidden = vitrail.explain(model, inputs, name, **given)
    assert words not in screen.getvalue()
    assert torch.equal(shown.scores, hidden.scores)


def test_a_notebook_gets_a_bar_too(monkeypatch):
    monkeypatch.setattr(options, "in_notebook", lambda: True)
    assert "masks" in shown(terminal=False)


def test_a_run_of_the_bench_shows_a_bar_and_clears_it():
    from vitrail.evaluate.bench.driver import Progress, bar_of_run

    with redirect_stderr(Screen()) as screen:
        watch = bar_of_run()
        watch(Progress(3, 8, 3, 0, "photo · pets"))
        assert "photo · pets" in screen.getvalue()
        assert "3/8" in screen.getvalue()
        watch(Progress(8, 8, 8, 0, "photo · pets"))
    assert screen.getvalue().endswith("\r")
