"""What a model is: families and their parts, inputs and grids, loading by name, embedded models."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOISY = ("transformers", "huggingface_hub", "timm", "httpx", "torch.utils._pytree")


@contextmanager
def silent() -> Iterator[None]:
    """Keep the libraries' own log lines and progress bars off the screen; transformers must be imported by then."""
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
    """Without transformers' bar over the weights; nothing to do where it is not imported."""
    bars = sys.modules.get("transformers.utils.logging")
    if bars is None:
        yield
        return
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
