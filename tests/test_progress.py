"""A progress bar appears on a terminal if a run takes long, and changes nothing."""

import io
from contextlib import redirect_stderr

import pytest

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
        assert list(options.watched([3, 1, 2], "masks", show=show)) == [3, 1, 2]
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
        steps = options.watched([1, 2], "masks", show=True)
        next(steps)
        with pytest.raises(RuntimeError, match="mine"):
            steps.throw(RuntimeError("mine"))
    assert screen.getvalue().endswith("\r")  # the line is cleared
