"""A bar is shown to who waits at a terminal, and changes nothing."""

import io
import sys
from contextlib import redirect_stderr

import pytest

from vitrail.methods import progress

pytest.importorskip("rich")


class Screen(io.StringIO):
    def __init__(self, *, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE", -1.0)


def shown(*, show=True, terminal=True):
    with redirect_stderr(Screen(terminal=terminal)) as screen:
        assert list(progress.watched([3, 1, 2], "masks", show=show)) == [3, 1, 2]
    return screen.getvalue()


def test_who_waits_sees_a_bar():
    assert "masks" in shown()


def test_a_short_run_shows_nothing(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    assert shown() == ""


def test_it_can_be_switched_off():
    assert shown(show=False) == ""


def test_a_file_gets_no_bar():
    assert shown(terminal=False) == ""


def test_without_rich_there_is_no_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert shown() == ""


def test_an_error_takes_the_bar_down():
    with redirect_stderr(Screen()) as screen:
        steps = progress.watched([1, 2], "masks", show=True)
        next(steps)
        with pytest.raises(RuntimeError, match="mine"):
            steps.throw(RuntimeError("mine"))
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back
