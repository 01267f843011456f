"""Every private name of another library is in docs/PRIVATE_INTERFACES.md, and its absence is said at import."""

import ast
import re
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.capture import torch_private
from vitrail.errors import MissingExtraError

SOURCE = Path(vitrail.__file__).parent
PAGE = (SOURCE.parents[1] / "docs/PRIVATE_INTERFACES.md").read_text()
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_repr_html_"}
"""Documented in spite of their underscore."""


def texts() -> dict[Path, str]:
    return {path.relative_to(SOURCE): path.read_text() for path in SOURCE.rglob("*.py")}


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def own_name(node: ast.AST) -> str:
    """What a node defines: a function, class, variable, attribute, field or slot; or nothing."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
        return node.attr
    return (node.asname or node.name) if isinstance(node, ast.alias) else ""


def others_names(node: ast.AST) -> list[str]:
    """What a node reads or sets on something else than `self`, or imports from another package."""
    if isinstance(node, ast.Attribute) and not is_self(node.value):
        return [node.attr]
    if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("vitrail"):
        return [*node.module.split("."), *(alias.name for alias in node.names)]
    return []


def foreign() -> dict[str, set[str]]:
    """Private names that are read or set on something else than the package's own objects -> the files that do."""
    own, met = set(), set()
    for path, text in texts().items():
        for node in ast.walk(ast.parse(text)):
            own.add(own_name(node))
            private = [name for name in others_names(node) if re.fullmatch(r"_[a-zA-Z]\w*", name)]
            met |= {(name, str(path), isinstance(node, ast.ImportFrom)) for name in private}
    found = {}
    for name, path, is_import in met:
        if name not in PUBLIC and (name not in own or is_import):
            found.setdefault(name, set()).add(path)
    return found


def test_every_private_name_of_another_library_is_listed():
    assert {name: files for name, files in foreign().items() if name not in PAGE} == {}


def test_names_of_ray_are_used_in_one_file():
    users = {str(path) for path, text in texts().items() if "ray._private" in text}
    assert users == {"evaluate/bench/engines_ray.py"}


def test_a_name_that_torch_has_lost_is_said_with_its_purpose():
    with pytest.raises(MissingExtraError, match=r"has no torch\._C\._gone, which vitrail needs to see it"):
        torch_private._private("_C._gone", "see it")


def test_modules_that_torch_builds_otherwise_are_said(monkeypatch):
    monkeypatch.setattr(torch_private, "NEEDED_OF_MODULES", {"_parameters", "_gone"})
    with pytest.raises(MissingExtraError, match="has no _gone"):
        torch_private.check_interfaces()
    assert torch.nn.Module()._parameters == {}


@pytest.mark.slow
def test_a_name_that_ray_has_lost_is_said(monkeypatch):
    ray_engine = pytest.importorskip("vitrail.evaluate.bench.engines_ray")
    monkeypatch.setattr(ray_engine, "PRIVATE", (*ray_engine.PRIVATE, (ray_engine.services, "gone")))
    with pytest.raises(MissingExtraError, match=r"ray \S+ has no ray\._private\.services\.gone"):
        ray_engine.check_private()
