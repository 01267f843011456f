"""Models by name: weights, preprocessing, tokenizer and class names from one call."""

from pathlib import Path

from vitrail.errors import ModelError
from vitrail.models.loading.embedded import NAMES as EMBEDDED
from vitrail.models.loading.embedded import load_embedded
from vitrail.models.loading.huggingface import load_huggingface
from vitrail.models.loading.loaded import Loaded, Sample
from vitrail.models.loading.vision import is_timm_name, load_timm, load_weights

PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".tar"}


def load(name: str, *, arch: str | None = None, pickles: bool = False) -> Loaded:
    """A model that is ready to be explained, in evaluation mode on the CPU.

    Args:
        name: `photo` or `sentiment` (the models inside the package), a timm name, a Hugging Face id or folder, or a
            `.safetensors` file.
        arch: the timm architecture that a `.safetensors` file belongs to; nothing else takes one.
        pickles: also read a Hugging Face model whose weights are pickled, by torch's reader of weights alone.
    """
    path = Path(name)
    if path.suffix in PICKLES:
        raise ModelError(
            f"{name} is a pickle, which can run any code when it is opened, so it is refused. Convert it once where "
            "you trust it: safetensors.torch.save_file(torch.load(file, weights_only=True), 'model.safetensors')."
        )
    if path.suffix == ".safetensors":
        return load_weights(path, arch)
    if arch is not None:
        raise ModelError(f"an architecture ({arch}) belongs to a .safetensors file, but {name!r} is not one.")
    if name in EMBEDDED and not path.exists():
        return load_embedded(name)
    if is_timm_name(name):
        return load_timm(name)
    return load_huggingface(name, pickles=pickles)


__all__ = ["Loaded", "Sample", "load"]
