"""The table of methods is read from source text; what it says has to be what the functions declare."""

import inspect
import subprocess
import sys

import pytest

from vitrail.methods import METHODS
from vitrail.methods.option_text import declared, plain_types, types_of


@pytest.mark.parametrize("name", METHODS)
def test_the_text_says_what_the_function_declares(name):
    entry = METHODS[name]
    options = inspect.signature(entry.build).parameters
    assert entry.options == {n: option.default for n, option in options.items()}
    assert {n: entry.kinds_of(n) for n in options} == {n: plain_types(o.annotation) for n, o in options.items()}
    assert entry.doc == inspect.getdoc(entry.build)


def test_what_the_text_does_not_say_is_imported(tmp_path, monkeypatch):
    (tmp_path / "made_elsewhere.py").write_text(
        "SIZE = 3\n\ndef build(*, size: int = SIZE):\n    'Doc.'\n\nother = build\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for function in ("build", "other"):
        assert declared(f"made_elsewhere:{function}").defaults == {"size": 3}
        assert types_of(f"made_elsewhere:{function}") == {"size": (int,)}


def test_the_table_is_read_without_torch():
    code = (
        "import sys; from vitrail.methods import METHODS\n"
        "said = [(m.summary, m.options, m.presets, m.cost, m.paper) for m in METHODS.values()]\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'transformers'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
