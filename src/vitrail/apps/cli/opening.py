"""A model from its name on the command line, without the chatter of the libraries that load it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from vitrail.apps.cli.reporting import note
from vitrail.models.loading import Loaded, load
from vitrail.models.loading.devices import find_device

NOISY = ("transformers", "huggingface_hub", "timm", "httpx")


def open_model(name: str, arch: str | None, device: str = "cpu") -> Loaded:
    """The model, ready on the device."""
    place = find_device(device)
    note(f"loading {name}")
    with silent():
        loaded = load(name, arch=arch)
    loaded.model.to(place)
    return loaded


@contextmanager
def silent() -> Iterator[None]:
    """Keep the libraries' own log lines and progress bars off the screen."""
    with _no_progress_bars():  # first, since importing transformers sets its logger's level
        loggers = [logging.getLogger(name) for name in NOISY]
        levels = [logger.level for logger in loggers]
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Without transformers' bar over the weights; nothing to do where it is not installed."""
    try:
        from transformers.utils import logging as bars
    except ImportError:
        yield
        return
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
