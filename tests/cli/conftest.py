import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_bert, save_gpt2, save_question_bert, save_timm, save_vit
from typer.testing import CliRunner

from vitrail.apps.cli.app import app


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(1)
    save_timm(folder)
    for save in (save_bert, save_question_bert, save_gpt2, save_vit):
        save(folder / save.__name__.removeprefix("save_"))
    noise = np.random.default_rng(0).integers(256, size=(9, 13, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((60, 44)).save(folder / "cat.png")
    return folder


@pytest.fixture
def run(place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *args, **more: CliRunner().invoke(app, list(map(str, args)), **more)


@pytest.fixture
def terminal(monkeypatch):
    """Print as on a terminal that is wide enough for every table."""
    from rich.console import Console

    for module in ("screen", "show", "pages"):
        monkeypatch.setattr(
            f"vitrail.apps.cli.{module}.out",
            lambda: Console(highlight=False, force_terminal=True, color_system=None, width=160),
        )
