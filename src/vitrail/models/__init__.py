"""What a model is: families and their parts, inputs and grids, loading by name, embedded models."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOISY = ("transformers", "huggingface_hub", "timm", "httpx", "torch.utils._pytree")


@contextmanager
def silent() -> Iterator[None]:
    """Keep the libraries' own log lines and progress bars off the screen; transformers must be imported by then."""
    bars = sys.modules.get("transformers.utils.logging")  # of the weights; where it is not imported there are none
    hidden = bars if bars is not None and bars.is_progress_bar_enabled() else None
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    try:
        if hidden is not None:
            hidden.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if hidden is not None:
            hidden.enable_progress_bar()
