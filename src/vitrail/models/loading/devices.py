"""Where a model runs, by the name a user gives."""

import torch

from vitrail.errors import OptionError


def find_device(name: str) -> torch.device:
    """The device of this name, if it can be used."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device
