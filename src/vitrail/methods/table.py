"""The entries of the table of methods, and methods of users: given as objects, or registered under a name.

A method is a `Walk`, a `LayerReader`, a `RerunMethod`, or a function of a recording that returns one score per token.
`register_method` gives a name to a function that makes one. Packages name theirs in the entry-point group
`vitrail.methods`, which is read when a name is asked for that is not known otherwise.
"""

import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, MethodError, OptionError, VitrailError, one_line, suggest
from vitrail.methods.option_text import declared, load, module_doc, types_of

if TYPE_CHECKING:  # these import torch, and the table is read without it
    from vitrail.models.inputs import Inputs
    from vitrail.relevance import LayerReader, Walk
    from vitrail.relevance.runner import RerunMethod

logger = logging.getLogger("vitrail")

PACKAGE = "vitrail.methods"

GROUP = "vitrail.methods"
"""The group of entry points by which packages name their methods."""
PLUGINS = "VITRAIL_PLUGINS"
"""The environment variable that names modules to import, separated by commas."""
RESERVED = frozenset({"auto", "default", "all", "usual", "random", "centre", "center", "position", "class"})
"""Words that stand for something else where methods are named."""
NO_PAPER = "a method of your own"
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def reads_recording(function: Callable[..., Any]) -> bool:
    """Return True if a function takes a recording: its first parameter is given by position."""
    parameters = _parameters(function)
    return bool(parameters) and parameters[0].kind in POSITIONAL


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function that a user wrote."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise MethodError(f"{function!r} does not say which arguments it takes, so it is no method.") from error


def check_options(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function whose options cannot be given by name alone, or have no default."""
    parameters = _parameters(function)
    options = parameters[1:] if reads_recording(function) else parameters
    for option in options:
        if option.kind is not inspect.Parameter.KEYWORD_ONLY or option.default is inspect.Parameter.empty:
            raise OptionError(
                f"the option {option.name} of {name} must be given by keyword and have a default: write "
                f"`def {getattr(function, '__name__', name)}(*, {option.name}: float = 1.0)`, or with the recording "
                "before the star."
            )


def _hash(text: str) -> str:
    """Return sixteen letters that tell texts apart."""
    from hashlib import sha256  # not needed to read the table

    return sha256(text.encode()).hexdigest()[:16]


def unwrapped(function: object) -> Any:  # noqa: ANN401
    """Return the function inside of partials."""
    while isinstance(function, partial):
        function = function.func
    return function


def package_methods() -> Sequence[Any]:
    """Return the methods that installed packages name."""
    from importlib.metadata import entry_points  # takes longer to import than the table

    return list(entry_points(group=GROUP))


def name_of(given: object, taken: Mapping[str, Any]) -> str:
    """Return what a method that was given as an object is called in results."""
    formula = unwrapped(getattr(given, "step", None) or getattr(given, "explain", None) or given)
    words = getattr(formula, "__qualname__", type(formula).__name__).split(".<locals>.")[-1]
    name = words.removesuffix(".step").removesuffix(".explain").replace(".", "_").replace("<lambda>", "own")
    known = taken.get(name)
    return name if known is None or known.built_by is given else f"own_{name}"


Preset = Mapping[str, Any]


@dataclass(frozen=True)
class ByKind:
    """An option whose value differs between images and text."""

    image: Any
    text: Any


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the table.

    Args:
        built_by: `module:function` inside `vitrail.methods`, or a function; see `build`.
        presets: by name, the options in which a preset differs from the defaults of `build`. `recommended` is
            `paper` unless it says otherwise; `official` is there only where the authors released code. By default
            only `paper`, which differs in nothing.
        signed: whether scores below zero mean evidence against the target.
        signed_by: option values that make an unsigned method signed.
        prepare_by: `module:function` of what has to be done to the inputs before the model runs, if anything.
        cost: how many forward and backward passes it takes, in words.
        inputs: what it explains.
        models: the only models it explains, in words; None where it is not bound to a kind of model.
        kind: how it works: `recording` walks over recorded layers, `rules` overrides the backward pass, `rerun` runs
            the model several times.
    """

    name: str
    built_by: str | Callable[..., Any]
    paper: str
    presets: Mapping[str, Preset] = field(default_factory=lambda: {"paper": {}})
    signed: bool = False
    signed_by: Mapping[str, Any] = field(default_factory=dict)
    class_specific: bool = True
    cost: str = "1 forward + 1 backward"
    prepare_by: str | None = None
    inputs: tuple[str, ...] = ("image", "text")
    models: str | None = None
    kind: str = "recording"

    @property
    def build(self) -> "Callable[..., Walk | LayerReader | RerunMethod]":
        """The function that takes the options as keywords and returns the method."""
        if isinstance(self.built_by, str):
            return load(f"{PACKAGE}.{self.built_by}")
        return partial(load(f"{PACKAGE}.own_plans:build_own"), self.name, self.built_by)

    @property
    def place(self) -> str | Callable[..., Any]:
        """The function that declares the options, or its name as `module:name`."""
        return f"{PACKAGE}.{self.built_by}" if isinstance(self.built_by, str) else self.built_by

    @property
    def code(self) -> str | None:
        """A hash of the module that a user's method stands in, so that results of another version are told apart."""
        if isinstance(self.built_by, str):
            return None
        own = unwrapped(self.built_by)
        try:
            text = inspect.getsource(inspect.getmodule(own) or own)
        except (OSError, TypeError):  # typed into a shell
            code = getattr(own, "__code__", None)
            text = repr(own) if code is None else f"{code.co_code!r} {code.co_consts!r} {code.co_names!r}"
        return _hash(text)

    def prepare(self, inputs: "Inputs", options: Mapping[str, Any]) -> "Inputs":
        """The inputs as the method runs the model on them."""
        return load(f"{PACKAGE}.{self.prepare_by}")(inputs, options)

    @property
    def doc(self) -> str:
        """The docstring of `build`: a summary, and an Args block with a line for each option."""
        return declared(self.place).doc

    @property
    def about(self) -> str:
        """The docstring of the method's file: the paper, and which names stand for its symbols."""
        return module_doc(self.place)

    @property
    def summary(self) -> str:
        """The first line of the docstring: what the method computes."""
        return self.doc.splitlines()[0] if self.doc else "A method without a description."

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its default."""
        return dict(declared(self.place).defaults)

    def kinds_of(self, option: str) -> tuple[type, ...]:
        """The types an option takes."""
        return types_of(self.place)[option]

    def preset(self, name: str) -> Preset:
        """The options of a preset."""
        presets = {"recommended": self.presets.get("paper", {}), **self.presets}
        if name not in presets:
            reason = " Its authors released no code." if name == "official" else ""
            raise OptionError(f"{self.name} has no preset {name!r}.{reason} {suggest(name, presets)}")
        return presets[name]

    def resolve(self, preset: str, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """All options: the defaults, changed by the preset, changed by those given."""
        for name, value in given.items():
            if name not in self.options:
                raise OptionError(f"{self.name} has no option {name!r}. {suggest(name, self.options)}")
            kinds = self.kinds_of(name)
            if not _fits(value, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                shown = " ".join(repr(value).split())  # a tensor is written in lines
                raise OptionError(f"{self.name}'s option {name} takes {wanted}, not {shown:.200}.")
        chosen = {**self.options, **self.preset(preset), **given}
        return {name: getattr(x, kind) if isinstance(x, ByKind) else x for name, x in chosen.items()}

    def label(self, preset: str, options: Mapping[str, Any], kind: str) -> str:
        """The method with what differs from the recommended options, or with its preset where that says it shorter."""
        usual = self.resolve("recommended", {}, kind)
        different = {n: v for n, v in options.items() if usual.get(n, v) != v}
        if preset in self.presets:
            own = self.resolve(preset, {}, kind)
            within = {"preset": preset, **{n: v for n, v in options.items() if own.get(n, v) != v}}
            different = within if len(within) < len(different) else different
        return f"{self.name}({', '.join(f'{n}={v}' for n, v in different.items())})" if different else self.name

    def is_signed(self, options: Mapping[str, Any]) -> bool:
        """Return True if scores below zero mean evidence against the target, with these options."""
        return self.signed or any(options.get(name) == value for name, value in self.signed_by.items())


def _fits(value: object, kinds: tuple[type, ...]) -> bool:
    """Return True if a value has one of the types; an int counts as a float, a bool does not count as a number."""
    if isinstance(value, (bool, int, float, str)):
        return type(value) in kinds or (type(value) is int and float in kinds)
    return isinstance(value, kinds)


def import_plugins(names: Sequence[str]) -> None:
    """Import modules that register methods: by name, as `my_methods`, from the working directory too, or `my.py`."""
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
        except VitrailError:
            raise
        except Exception as error:
            said = f"the plug-in {name} cannot be imported: {type(error).__name__}: {one_line(error)}"
            raise InputError(said) from error
    known = [name for name in os.environ.get(PLUGINS, "").split(",") if name]
    os.environ[PLUGINS] = ",".join(dict.fromkeys([*known, *names]))  # for processes that this one starts


def _import_module(name: str) -> None:
    """Import a module by its name, also from the working directory."""
    here = str(Path().resolve())
    sys.path.append(here)
    try:
        import_module(name)
    finally:
        sys.path.remove(here)


def _import_file(path: Path) -> None:
    """Run a file as a module of its own, whatever other module has its name; once."""
    if not path.is_file():
        raise InputError(f"there is no plug-in {path}.")
    name = f"vitrail_plugin_{_hash(str(path.resolve()))}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


class MethodTable(dict[str, Method]):
    """The methods by name. It is changed by `register` alone, which `vitrail.register_method` is.

    Names that are not known are looked for among the methods of installed packages, once.
    """

    def __init__(self, methods: Sequence[Method]) -> None:
        super().__init__({method.name: method for method in methods})
        self.built_in = tuple(method.name for method in methods)
        self._found = self._looking = False
        self._finding = threading.RLock()

    def __missing__(self, name: str) -> Method:
        """Return the method of a name that only a package knows."""
        self._find_packages()
        if not dict.__contains__(self, name):
            raise KeyError(name)
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        """Return True if there is a method of this name."""
        if not dict.__contains__(self, name):
            self._find_packages()
        return dict.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        self._find_packages()
        return super().__iter__()

    def __len__(self) -> int:
        """Return how many methods there are."""
        self._find_packages()
        return super().__len__()

    def keys(self) -> Any:  # noqa: ANN401
        """Return the names."""
        self._find_packages()
        return super().keys()

    def values(self) -> Any:  # noqa: ANN401
        """Return the methods."""
        self._find_packages()
        return super().values()

    def items(self) -> Any:  # noqa: ANN401
        """Return the names with their methods."""
        self._find_packages()
        return super().items()

    def _refuse(self, *given: object, **named: object) -> Any:  # noqa: ANN401
        raise MethodError("vitrail.METHODS is read-only: vitrail.register_method(name, build) adds a method.")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse  # pyright: ignore

    def _find_packages(self) -> None:
        """Register the methods that installed packages and named plug-ins bring, once."""
        if self._found:
            return
        with self._finding:
            if self._found or self._looking:
                return
            self._looking = True  # a plug-in may ask for names itself
            for name in filter(None, os.environ.get(PLUGINS, "").split(",")):
                try:
                    import_plugins([name])
                except VitrailError as error:
                    logger.warning("%s", error)
            for found in package_methods():
                try:
                    self.register(found.name, found.load())
                except Exception as error:  # whatever a package does when it is imported
                    logger.warning("the method %r of %s cannot be used: %s", found.name, found.value, one_line(error))
            self._found, self._looking = True, False

    def register(
        self,
        name: str,
        build: Callable[..., Any],
        *,
        paper: str | None = None,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        signed: bool = False,
        class_specific: bool = True,
        cost: str = "1 forward + 1 backward",
        inputs: Sequence[str] = ("image", "text"),
    ) -> None:
        """Give a method of your own a name, which every function, command and page then takes.

        Args:
            name: the new name; registering it again replaces the method.
            build: takes the options as keywords, each with a default, and returns a `Walk`, a `LayerReader` or a
                `RerunMethod`. Or a function of a `Recording`, its options after it, that returns scores `[b, tokens]`.
            paper: where the method is described.
            presets: by name, the options in which a preset differs from the defaults of `build`.
            signed: whether scores below zero mean evidence against the target.
            class_specific: whether the map depends on the target.
            cost: how many forward and backward passes it takes, in words.
            inputs: what it explains: `image`, `text`, or both.

        Raises:
            MethodError: if the name is no name, or belongs to a method of the library.
            OptionError: if an option has no default or cannot be given by keyword.

        Example:
            >>> def last_attention(recording, *, power: float = 1.0):
            ...     "The attention of the last layer, read at the class token."
            ...     return recording.layers[-1].probs.mean(dim=1)[:, 0] ** power
            >>> vitrail.register_method("last_attention", last_attention)
            >>> vitrail.explain("photo", torch.rand(1, 3, 160, 160), "last_attention", power=2.0).label
            'last_attention(power=2.0)'
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise MethodError(f"{name!r} is no name for a method: use letters, digits and _, such as 'my_method'.")
        if not callable(build):
            raise MethodError(f"build of {name} is a function that makes the method, not {type(build).__name__}.")
        inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs or ())
        if set(inputs) - {"image", "text"} or not inputs:
            raise OptionError(f"inputs={tuple(inputs)!r}, but a method explains 'image', 'text', or both.")
        if name in self.built_in or name in RESERVED:
            what = "a method of the library" if name in self.built_in else "a word of the library"
            raise MethodError(f"{name!r} is {what}: choose another name for yours.")
        check_options(name, build)
        presets = {"paper": {}} if presets is None else presets
        if not isinstance(presets, Mapping) or not all(isinstance(one, Mapping) for one in presets.values()):
            raise OptionError(f"presets of {name} are a mapping of names to options, not {presets!r:.100}.")
        method = Method(
            name, build, NO_PAPER if paper is None else paper, presets, signed=signed,
            class_specific=class_specific, cost=cost, inputs=tuple(inputs),
        )  # fmt: skip
        for options in presets.values():
            method.resolve("recommended", options, inputs[0])
        dict.__setitem__(self, name, method)
