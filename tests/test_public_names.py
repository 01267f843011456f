"""Modules under their public names give the objects of the rooms they live in, and load nothing twice."""

import subprocess
import sys

import pytest

import vitrail

HOMES = {
    "bench": "vitrail.evaluate.bench",
    "data": "vitrail.evaluate.data",
    "many": "vitrail.api.many",
    "metrics": "vitrail.evaluate.metrics",
    "report": "vitrail.plots.report",
    "zoo": "vitrail.models.zoo",
}


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout


def test_every_name_is_the_same_object_however_it_is_imported():
    code = f"""
import importlib, pkgutil, sys
import vitrail
for name, home in {HOMES}.items():
    public, real = importlib.import_module("vitrail." + name), importlib.import_module(home)
    names = getattr(real, "__all__", [one for one in dir(real) if not one.startswith("_")])
    for one in names:
        assert getattr(public, one) is getattr(real, one) is getattr(getattr(vitrail, name), one), one
    assert set(dir(public)) == set(dir(real))
    found = {{}}
    exec(f"from vitrail.{{name}} import *", found)
    assert all(found[one] is getattr(real, one) for one in names)
    for part in pkgutil.iter_modules(getattr(real, "__path__", [])):
        if part.name != "engines_ray":  # needs an extra
            other = importlib.import_module(f"vitrail.{{name}}.{{part.name}}")
            own = importlib.import_module(f"{{home}}.{{part.name}}")
            assert getattr(public, part.name) is getattr(real, part.name)
            assert all(getattr(other, one) is getattr(own, one) for one in dir(own) if not one.startswith("__"))
files = [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
files = [file for file in files if "/vitrail/" in file]
assert len(files) == len(set(files))
print(len(files))
"""
    assert int(run(code)) > len(HOMES)


def test_a_module_inside_of_one_can_be_imported_first():
    code = """
from vitrail.bench.plan import Plan
import vitrail.bench.protocols, vitrail.bench.measure
from vitrail.metrics import fills
import vitrail.evaluate.bench.plan, vitrail.evaluate.metrics.fills
assert vitrail.bench.Plan is Plan is vitrail.evaluate.bench.plan.Plan
assert vitrail.bench.protocols is vitrail.evaluate.bench.protocols
assert vitrail.bench.measure is vitrail.evaluate.bench.measure  # the function, which hides the module
assert fills is vitrail.evaluate.metrics.fills
"""
    assert run(code) == ""


def test_nothing_is_imported_before_it_is_used():
    names = ", ".join(f"vitrail.{name}" for name in HOMES)
    code = f"import {names}, sys; print({{'torch', 'numpy', 'PIL'}} & {{*sys.modules}})"
    assert run(code) == "set()\n"


def test_what_does_not_exist_is_said_so():
    with pytest.raises(AttributeError, match="nonsense"):
        vitrail.bench.nonsense  # noqa: B018
    with pytest.raises(ImportError):
        run_here("from vitrail.metrics import nonsense")
    with pytest.raises(ModuleNotFoundError):
        run_here("import vitrail.bench.nonsense")


def run_here(code):
    exec(code, {})
