"""A model from its name on the command line, without the chatter of the libraries that load it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitrail.cli.reporting import note
from vitrail.errors import OptionError
from vitrail.loading import Loaded, load

NOISY = ("transformers", "huggingface_hub", "timm", "httpx")


def open_model(name: str, arch: str | None, device: str = "cpu") -> Loaded:
    """The model, ready on the device."""
    place = _device(device)
    note(f"loading {name}")
    with _silent():
        loaded = load(name, arch=arch)
    loaded.model.to(place)
    return loaded


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


@contextmanager
def _silent() -> Iterator[None]:
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
