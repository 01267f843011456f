"""Help, completion and usage errors do not import torch. Modules are counted, not seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail

SOURCE = str(Path(vitrail.__file__).parents[1])
HEAVY = {"torch", "numpy", "scipy", "transformers", "timm", "PIL", "matplotlib", "gradio", "ray"}
PRINT = "import sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})), file=sys.stderr)"
LIGHT = [
    ("--version",),
    ("--help",),
    ("explain", "--help"),
    ("bench", "run", "--help"),
    ("methods",),
    ("methods", "gradtoken"),
    ("methods", "gea"),
    ("explain", "cat.png", "--nope"),
    ("explan",),
    ("explain", "absent.png", "-m", "photo"),
    ("explain", "a film", "-m", "sentiment", "--method", "gea"),
    ("explain", "a film", "-m", "sentiment", "--method", "gradtoken(dept=1)"),
    ("explain", "a film", "-m", "sentiment", "--preset", "offical"),
    ("explain", "a film", "-m", "sentiment", "-o", "no/such/folder.png"),
    ("explain", "a film", "-m", "phto"),
    ("explain", "golf_ball", "-m", "photo"),
    ("guide", "absent.png", "-m", "photo"),
    ("rewrite", "a film", "-m", "photo"),
]


def modules(code, **env):
    """The top-level modules that are imported once the code has run."""
    result = subprocess.run(
        [sys.executable, "-c", f"import atexit\natexit.register(lambda: exec({PRINT!r}))\n{code}"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": SOURCE, **env},
    )  # fmt: skip
    return set(json.loads(result.stderr.splitlines()[-1])), result


COMPLETED = {
    "vitrail explain --method gae": "gae",
    "vitrail explain --model ph": "photo",
    "vitrail explain --preset off": "official",
    "vitrail explain --model photo --target go": "golf ball",
    "vitrail methods grad_e": "grad_eclip",
    "vitrail bench run --protocol che": "chefer",
}
"""What stands on a command line, and a word that a shell offers there."""
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, os, sys
from vitrail.apps.cli import main
from vitrail.apps.cli.app import app

def run(function):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        function()
    modules = sorted({name.split(".")[0] for name in sys.modules})
    return {"modules": modules, "out": out.getvalue(), "err": err.getvalue()}

def command(args):
    sys.argv = ["vitrail", *args]
    return run(main)

def completion(line):
    os.environ.update(_VITRAIL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1))
    sys.argv = ["vitrail"]
    return run(lambda: app(prog_name="vitrail"))

print(json.dumps([*map(command, %r), *map(completion, %r)]))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each command and completion printed, and the modules imported by then: what none imported, each did not."""
    result = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER % (LIGHT, list(COMPLETED))],
        capture_output=True, text=True, check=True,
        cwd=tmp_path_factory.mktemp("empty"), env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    return dict(zip([*LIGHT, *COMPLETED], json.loads(result.stdout), strict=True))


@pytest.mark.parametrize("args", LIGHT, ids=" ".join)
def test_what_needs_no_model_imports_no_torch(args, found):
    assert found[args]["out"] or found[args]["err"]
    assert "typer" in found[args]["modules"]
    assert not HEAVY & set(found[args]["modules"])


@pytest.mark.parametrize("line", COMPLETED)
def test_a_shell_completes_without_torch(line, found):
    assert COMPLETED[line] in found[line]["out"]
    assert not HEAVY & set(found[line]["modules"])


def test_importing_the_package_imports_no_torch():
    found, _ = modules("import vitrail; vitrail.METHODS; vitrail.VitrailError")
    assert not found & HEAVY


MORE_AND_MORE = """
import contextlib, io, json, sys
import torch, vitrail

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    def forward(self, x):
        return x + self.attention(x, x, x)[0]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(4, 3)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))

def modules():
    return sorted({name.split(".")[0] for name in sys.modules})

with contextlib.suppress(vitrail.VitrailError):  # whether it can be explained is another test
    vitrail.explain(Model(), torch.rand(1, 5, 4), "gae")
own = modules()
vitrail.explain("photo", vitrail.zoo.example())
vitrail.explain("sentiment", "a film")
embedded = modules()
print("loading", file=sys.stderr, flush=True)
vitrail.zoo.load("photo")
vitrail.zoo.load("sentiment")
print(json.dumps({"own": own, "embedded": embedded}))
"""


@pytest.fixture(scope="module")
def explaining():
    """A process that explains a model of its own, then the embedded ones, then loads those of Hugging Face."""
    return subprocess.run(
        [sys.executable, "-c", MORE_AND_MORE],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip


def test_explaining_a_model_of_ones_own_imports_no_library_of_models(explaining):
    found = set(json.loads(explaining.stdout)["own"])
    assert "torch" in found
    assert not found & {"transformers", "timm", "gradio", "ray", "matplotlib", "typer"}


def test_the_first_explanation_of_an_embedded_model_imports_torch_and_little_else(explaining):
    found = set(json.loads(explaining.stdout)["embedded"])
    others = {"torchvision", "torchao", "pandas", "sklearn", "typer", "triton"}  # the last one by torch's compiler
    assert not found & (HEAVY - {"torch", "numpy", "PIL"} | others)


def test_loading_an_embedded_model_for_the_first_time_writes_nothing(explaining):
    assert explaining.stderr.partition("loading\n")[2] == ""


def test_python_m_vitrail_is_the_command_line():
    result = subprocess.run([sys.executable, "-m", "vitrail", "--version"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split()[0]) == (0, "vitrail")
