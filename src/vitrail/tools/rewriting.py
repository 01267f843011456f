"""What `rewrite` gives back: the new picture, how far it is from the old one, and what the model says of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import OutputError
from vitrail.storage import finite, json_text
from vitrail.tools.lens import to_array, to_image
from vitrail.tools.likeness import psnr, ssim

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

NOTICE = "adversarial robustness audit of your own model"
"""What every result, file and command says that it is."""


@dataclass(frozen=True, eq=False)
class Rewriting:
    """Adversarial robustness audit of your own model: one picture, rewritten from one class to another.

    Args:
        levels: the original and the new picture as the model sees them, values from 0 to 1 on 256 levels.
        classes: source and target.
        names: of source and target.
        logits: of the original and of the new picture, saved as PNG and loaded again.
        trace: the probabilities of source and target before the first step and after each, before rounding to 8 bits.
        reached: whether the new picture's top-1 class is the target with the probability wanted.
        settings: eta, steps, probability, l2, linf.
    """

    levels: tuple[Float[Tensor, "1 3 h w"], Float[Tensor, "1 3 h w"]]
    classes: tuple[int, int]
    names: tuple[str, str]
    logits: tuple[Float[Tensor, " c"], Float[Tensor, " c"]]
    trace: Float[Tensor, "s 2"]
    reached: bool
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def original(self) -> "Image":
        """What the model saw."""
        return to_image(self.levels[0])

    @property
    def picture(self) -> "Image":
        """The rewritten picture, 8 bits a channel, at the model's own size."""
        return to_image(self.levels[1])

    @property
    def change(self) -> Float[Tensor, "1 3 h w"]:
        """New minus old, in units of the range 0 to 1."""
        return self.levels[1] - self.levels[0]

    @property
    def amplification(self) -> int:
        """How many times larger `difference` shows the change: so that 99.5 % of the values fit."""
        usual = float(np.quantile(self.change.abs().cpu().numpy(), 0.995))
        return max(1, int(0.5 / max(usual, 1 / 255)))

    @property
    def difference(self) -> "Image":
        """The change, amplified around grey."""
        return to_image((0.5 + self.amplification * self.change).clamp(0, 1))

    @property
    def l2(self) -> float:
        """The Euclidean norm of the change."""
        return float(self.change.double().norm())

    @property
    def linf(self) -> float:
        """The largest change of any value."""
        return float(self.change.abs().max())

    @cached_property
    def psnr(self) -> float:
        """Decibels between the two pictures."""
        return psnr(*(to_array(x) / 255 for x in self.levels))

    @cached_property
    def ssim(self) -> float:
        """The structural similarity of the two pictures."""
        return ssim(*(to_array(x) / 255 for x in self.levels))

    @property
    def fooled(self) -> bool:
        """Whether the target is the new picture's top-1 class, whatever its probability."""
        return int(self.logits[1].argmax()) == self.classes[1]

    @property
    def probabilities(self) -> Float[Tensor, "2 2"]:
        """Of source and target (columns) in the original and in the new picture (rows), as saved and loaded again."""
        return torch.stack([x.softmax(dim=0) for x in self.logits])[:, list(self.classes)]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON holds them."""
        return finite(
            {
                "format": "vitrail.rewriting",
                "notice": NOTICE,
                "source": {"index": self.classes[0], "name": self.names[0]},
                "target": {"index": self.classes[1], "name": self.names[1]},
                "reached": self.reached,
                "fooled": self.fooled,
                "probabilities": {"before": self.probabilities[0].tolist(), "after": self.probabilities[1].tolist()},
                "logits": {"before": self.logits[0].tolist(), "after": self.logits[1].tolist()},
                "steps": len(self.trace) - 1,
                "psnr": self.psnr,
                "ssim": self.ssim,
                "l2": self.l2,
                "linf": self.linf,
                "settings": dict(self.settings),
                "trace": self.trace.tolist(),
                "provenance": dict(self.provenance),
            }
        )

    def plot(self) -> "Figure":
        """A figure of both pictures, the amplified difference and the probabilities on the way."""
        from vitrail.plots.rewriting import rewriting_sheet

        return rewriting_sheet(self)

    def save(self, path: str | Path) -> Path:
        """Write the new picture as `.png`, with what it is and how it was made in it, or the numbers as `.json`."""
        from vitrail.storage import write_bytes

        path = Path(path)
        if path.suffix.lower() not in WRITERS:
            raise OutputError(
                f"{path} does not end in .png, which keeps every value as it is, or .json for the numbers."
            )
        return write_bytes(path, WRITERS[path.suffix.lower()](self))


def png(picture: "Image", about: Mapping[str, Any]) -> bytes:
    """The picture as a PNG file that says what it is."""
    from PIL.PngImagePlugin import PngInfo

    info, sink = PngInfo(), BytesIO()
    info.add_text("Title", f"rewritten picture: {NOTICE}")
    info.add_text("Description", json_text({key: x for key, x in about.items() if key not in ("trace", "logits")}))
    picture.save(sink, "PNG", pnginfo=info)
    return sink.getvalue()


WRITERS: dict[str, Callable[[Rewriting], bytes]] = {
    ".png": lambda made: png(made.picture, made.to_dict()),
    ".json": lambda made: json_text(made.to_dict()).encode(),
}
