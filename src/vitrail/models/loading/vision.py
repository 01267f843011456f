"""timm models: by name with published weights, or an architecture with weights from a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitrail.errors import MissingExtraError, ModelError, one_line, suggest
from vitrail.models.loading.loaded import Loaded

if TYPE_CHECKING:
    from vitrail.models.loading.images import View

HUB = "hf-hub:"


def _timm() -> Any:  # noqa: ANN401
    try:
        import timm
        import timm.data
    except ImportError as error:
        raise MissingExtraError("timm models need the package timm: pip install 'vitrail[timm]'") from error
    return timm


def is_timm_name(name: str) -> bool:
    """Return True if timm knows an architecture of this name, or keeps such a model on the hub."""
    if "/" in name or name.startswith(HUB):
        return name.startswith(("timm/", HUB))
    try:
        return bool(_timm().is_model(name))
    except MissingExtraError:
        return False


def timm_names(name: str) -> list[str]:
    """The names of timm's architectures, where this could be meant as one of them."""
    try:
        return [] if "/" in name else list(_timm().list_models())
    except MissingExtraError:
        return []


def load_timm(name: str, *, pretrained: bool = True) -> Loaded:
    """A timm model with its published weights, from the cache or the hub, or with random ones."""
    timm = _timm()
    source = f"{HUB}{name}" if name.startswith("timm/") else name
    # A repository of the hub may hold pickles only: without this name timm would read those.
    overlay = {"hf_hub_filename": "model.safetensors"} if source.startswith(HUB) else None
    try:
        model = timm.create_model(source, pretrained=pretrained, pretrained_cfg_overlay=overlay)
    except Exception as error:  # the hub's errors have no common root
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"the weights of {name} could not be fetched: {reason} Offline, give a .safetensors file and its "
            "architecture (arch)."
        ) from error
    return _loaded(model, name)


TORCHVISION = "torchvision/"


def _torchvision() -> Any:  # noqa: ANN401
    try:
        import torchvision.models
    except ImportError as error:
        raise MissingExtraError("torchvision models need the package torchvision: pip install torchvision") from error
    return torchvision.models


def is_torchvision_name(name: str) -> bool:
    """Return True if torchvision knows an architecture of this name; `torchvision/` before it asks for nothing else."""
    if name.startswith(TORCHVISION):
        return True
    try:
        return "/" not in name and name in _classifiers(_torchvision())
    except MissingExtraError:
        return False


def _classifiers(models: Any) -> list[str]:  # noqa: ANN401
    """The names of torchvision's classifiers of images; others have parts that it fetches by itself."""
    return list(models.list_models(module=models))


def load_torchvision(name: str, *, pretrained: bool = True) -> Loaded:
    """A torchvision model with its published weights, or with random ones."""
    import torch.hub

    from vitrail.models.loading.images import View

    models, short = _torchvision(), name.removeprefix(TORCHVISION)
    if short not in (known := _classifiers(models)):
        raise ModelError(f"torchvision has no classifier of images {short!r}. {suggest(short, known)}")
    weights = models.get_model_weights(short).DEFAULT
    names = tuple(weights.meta.get("categories") or ()) or None
    model = models.get_model(short)
    if pretrained:
        try:  # its files are pickles, of which only tensors are read
            state = torch.hub.load_state_dict_from_url(weights.url, check_hash=True, weights_only=True)
            model.load_state_dict(state)
        except Exception as error:  # of the network, and of files
            raise ModelError(f"the weights of {name} could not be fetched: {one_line(error)}") from error
    show = weights.transforms()
    view = View(
        (show.crop_size[0], show.crop_size[0]), crop_pct=show.crop_size[0] / show.resize_size[0], crop_mode="center",
        interpolation=show.interpolation.value, mean=tuple(show.mean), std=tuple(show.std),
    )  # fmt: skip
    return Loaded(
        model.eval(), name, "image", "image", len(names or ()), names, preprocess=view, image_size=view.size,
        processor=view,
    )  # fmt: skip


def load_weights(path: Path, arch: str | None) -> Loaded:
    """A timm architecture filled from a `.safetensors` file, with as many classes as the file has."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    timm = _timm()
    if not path.is_file():
        raise ModelError(f"there is no model at {path}.")
    if arch is None:
        config = path.with_name("config.json").is_file()
        folder = f" {path.parent} is a Hugging Face folder: give the folder." if config else ""
        raise ModelError(
            f"{path.name} holds weights only. Say which timm architecture they belong to, for example "
            f"--arch vit_tiny_patch16_224.{folder}"
        )
    if not timm.is_model(arch):
        known = timm.list_models()
        near = suggest(arch, known)
        near = near if near.startswith("Did") else f"It knows {len(known)}: timm.list_models() names them."
        raise ModelError(f"timm has no architecture {arch!r}. {near}")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error
    model = timm.create_model(arch, num_classes=_count_classes(path, weights, timm.get_pretrained_cfg(arch)))
    _fill(model, weights, path, arch)
    return _loaded(model, path.stem)


def _count_classes(path: Path, weights: dict[str, Tensor], config: Any) -> int:  # noqa: ANN401
    heads = config.classifier if config is not None and config.classifier else "head"
    head = heads if isinstance(heads, str) else heads[0]
    weight = weights.get(f"{head}.weight")
    if weight is None:
        raise ModelError(
            f"{path.name} has no {head}.weight, so it has no classes to explain. It holds {len(weights)} tensors: "
            f"{', '.join(list(weights)[:3])}, ..."
        )
    if weight.numel() == 0 or weight.ndim != 2:
        raise ModelError(f"{path.name} has a {head}.weight of shape {list(weight.shape)}, which no classifier has.")
    return weight.shape[0]


def _fill(model: nn.Module, weights: dict[str, Tensor], path: Path, arch: str) -> None:
    own = model.state_dict()
    missing, extra = [n for n in own if n not in weights], [n for n in weights if n not in own]
    shapes = [n for n in own if n in weights and own[n].shape != weights[n].shape]
    if not (missing or extra or shapes):
        model.load_state_dict(weights)
        return
    example = (
        f"{shapes[0]} is {tuple(weights[shapes[0]].shape)}, not {tuple(own[shapes[0]].shape)}"
        if shapes
        else f"{(missing or extra)[0]} is {'missing' if missing else 'not part of it'}"
    )
    raise ModelError(
        f"{path.name} does not fit {arch}: {len(missing)} tensors are missing, {len(extra)} are unknown and "
        f"{len(shapes)} have another shape, for example {example}."
    )


def _loaded(model: nn.Module, name: str) -> Loaded:
    view, classes = view_of(model), int(getattr(model, "num_classes", 0))
    return Loaded(
        model.eval(), name, "image", "image", classes, class_names(model),
        preprocess=view, image_size=view.size, processor=view,
    )  # fmt: skip


def view_of(model: nn.Module) -> "View":
    """Return the preprocessing of a timm model."""
    from vitrail.models.loading.images import View

    config = _timm().data.resolve_model_data_config(model)
    same = ("crop_pct", "crop_mode", "interpolation", "mean", "std")
    return View(tuple(config["input_size"][1:]), **{name: config[name] for name in same})


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """ImageNet's names where the number of classes says that it is ImageNet."""
    data = _timm().data
    subset = data.infer_imagenet_subset(model)
    return tuple(data.ImageNetInfo(subset).label_descriptions()) if subset else None
