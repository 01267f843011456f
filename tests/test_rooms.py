"""The rooms of the package import each other in one direction only, and every class has a name of its own."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import vitrail

SOURCE = Path(vitrail.__file__).parent
ORDER = [
    {"errors"},
    {"targets"},
    {"attribution"},
    {"storage"},
    {"models"},
    {"capture"},
    {"relevance"},
    {"methods"},
    {"api"},
    {"evaluate"},
    {"plots"},
    {"tools"},
    {"apps"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
REACHING_UP = {
    ("attribution", "methods"): "the label names what differs from the options of the method",
    ("attribution", "plots"): "Attribution.plot and to_html; pictures are an optional extra",
    ("attribution", "storage"): "Attribution.save and load",
    ("attribution", "apps"): "Attribution.explore; the page is an optional extra",
    ("api", "evaluate"): "workers of explain_many on Ray are an optional extra",
    ("evaluate", "plots"): "tables in notebooks and figures of curves; pictures are an optional extra",
    ("storage", "plots"): "pictures are an optional extra",
}
"""Imports inside functions that are allowed, with the reason."""
REMAINING: set[tuple[str, str]] = set()
"""Pairs of rooms whose imports still go against the order. The list may only get shorter."""


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@dataclass(frozen=True)
class Found:
    """What is read of a module. Its tree is not kept: a million objects, which every search for garbage would pass."""

    at_the_top: set[str]
    inside_functions: set[str]
    classes: list[str]


@cache
def modules() -> dict[str, Found]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        tree = ast.parse(path.read_text())
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Found(imported_at_the_top(tree), inside_functions(tree), classes)
    return found


@cache
def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported_at_the_top(tree: ast.Module) -> set[str]:
    """The modules of the package that are imported when a module is."""
    return set().union(*(imported(ast.Module([node], [])) for node in tree.body if not isinstance(node, DEFINITIONS)))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those right below a node. Imports are statements: expressions, most of a tree, need not be searched."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, name, ())
        yield from inside if isinstance(inside, list) else ()  # that of a lambda or a conditional is an expression


def imported(tree: ast.AST) -> set[str]:
    """The modules of the package that are imported anywhere below a node, but for annotations."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vitrail":
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {path if is_module(path) else node.module for path in paths}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("vitrail.")}
        else:
            found |= imported(node)
    return found


def inside_functions(tree: ast.Module) -> set[str]:
    """Those that are imported below a function; what is inside an inner function is also below the outer one."""
    found, waiting = set(), [tree]
    while waiting:
        for node in statements(waiting.pop()):
            if isinstance(node, FUNCTIONS):
                found |= imported(node)
            else:
                waiting.append(node)
    return found


def test_rooms_import_only_those_before_them():
    against = defaultdict(set)
    for module, read in modules().items():
        here = room_of(module)
        at_the_top, inside = read.at_the_top, read.inside_functions
        allowed = {other for other in inside - at_the_top if (here, room_of(other)) in REACHING_UP}
        for there in {room_of(other) for other in (at_the_top | inside) - allowed} & RANK.keys():
            if here in RANK and here != there and RANK[there] >= RANK[here]:
                against[here, there].add(module)
    assert set(against) - REMAINING == set(), {pair: against[pair] for pair in set(against) - REMAINING}


def test_structure_is_measured_without_what_records_a_pass():
    read_first, layer = "vitrail.capture.structure", "vitrail.capture.recording.layer"
    every = {module: read.at_the_top | read.inside_functions for module, read in modules().items()}
    own = [others for module, others in every.items() if module.startswith(read_first)]
    assert len(own) > 15
    found = set().union(*own)
    assert {other for other in found if other.startswith("vitrail.capture.recording")} <= {layer}


def test_only_allowed_imports_stand_inside_functions():
    found = {
        (module, other)
        for module, read in modules().items()
        if room_of(module) in CORE
        for other in read.inside_functions
        if (room_of(module), room_of(other)) not in REACHING_UP
    }
    assert found == OF_EXTRAS


OF_EXTRAS = {
    ("vitrail.api.many", "vitrail.models.loading.images"),  # Pillow
    ("vitrail.models.loading.huggingface", "vitrail.models.loading.images"),
    ("vitrail.relevance.fused", "vitrail.relevance.kernels"),  # Triton
    ("vitrail.models.loading.vision", "vitrail.models.loading.images"),  # Pillow
    ("vitrail.models.loading", "vitrail.models.zoo.photo"),  # transformers
    ("vitrail.models.taking", "vitrail.models.loading.images"),  # Pillow
    ("vitrail.models.taking", "vitrail.models.loading"),  # Pillow, transformers
    ("vitrail.models.taking", "vitrail.models.loading.huggingface"),  # transformers
    ("vitrail.models.taking", "vitrail.models.loading.loaded"),  # Pillow
    ("vitrail.models.taking", "vitrail.models.zoo"),  # transformers
    ("vitrail.models.taking", "vitrail.models.zoo.photo"),  # transformers
    ("vitrail.models.zoo", "vitrail.models.zoo.photo"),  # transformers
}
"""Modules that need an optional extra are imported when they are first used."""
CORE = {"errors", "targets", "attribution", "storage", "models", "capture", "relevance", "methods", "api"}


def test_modules_of_the_core_import_each_other_without_a_cycle():
    graph = {module: read.at_the_top for module, read in modules().items() if room_of(module) in CORE}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a cycle of imports: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_two_classes_have_the_same_name():
    homes = defaultdict(list)
    for module, read in modules().items():
        for name in read.classes:
            homes[name].append(module)
    twice = {name for name, where in homes.items() if len(where) > 1}
    assert twice == SAME_NAMES, {name: homes[name] for name in twice ^ SAME_NAMES}


SAME_NAMES: set[str] = set()
"""Class names that still exist more than once. The list may only get shorter."""
