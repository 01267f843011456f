"""The page's own files: ES modules joined into one script, style sheets joined into one; read once, no build step.

The modules under `static/` import each other by relative path with `import {a, b as c} from "./x.js"` or a default
import; `script` gives each a function of its own, in the order of their imports.
"""

import re
from functools import cache
from importlib.resources import files
from posixpath import dirname, join, normpath

MAIN = "main.js"
STYLES = ("vendor/uPlot.min.css", "style.css")
_IMPORT = re.compile(r'import\s*(?:(\w+)\s*)?(?:\{([^}]*)\}\s*)?from\s*"([^"]+)";?')
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_LIST = re.compile(r"export\s*\{([^}]*)\};?")
_DEFAULT = re.compile(r"export default ")
_NOTE = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def read(name: str) -> str:
    """A file under `static/`."""
    return files("vitrail.apps.web").joinpath("static", *name.split("/")).read_text("utf-8")


def _pairs(names: str) -> list[tuple[str, str]]:
    """`a, b as c` as pairs of the name before and after `as`."""
    parts = [part.strip().split(" as ") for part in names.split(",") if part.strip()]
    return [(part[0].strip(), part[-1].strip()) for part in parts]


def _module(name: str, text: str) -> tuple[str, list[str]]:
    """A module as a function that gives what it exports, and the modules it imports."""
    needed: list[str] = []

    def imported(match: re.Match[str]) -> str:
        whole, names, path = match.groups()
        other = normpath(join(dirname(name), path))
        needed.append(other)
        parts = [f"default: {whole}"] if whole else []
        parts += [f"{a}: {b}" if a != b else a for a, b in _pairs(names or "")]
        return f'const {{{", ".join(parts)}}} = modules["{other}"];'

    body = _IMPORT.sub(imported, _NOTE.sub("", text))
    exported = [f"{found[1]}: {found[1]}" for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    for match in _LIST.finditer(body):
        exported += [f"{b}: {a}" for a, b in _pairs(match[1])]
    body = _LIST.sub("", body)
    if _DEFAULT.search(body):
        body = _DEFAULT.sub("const exported = ", body)
        exported.append("default: exported")
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{{", ".join(exported)}}};\n}})();\n', needed


@cache
def script() -> str:
    """All modules as one script, each after those it imports."""
    done: dict[str, str] = {}
    open_modules: list[str] = []

    def add(name: str) -> None:
        if name in done:
            return
        if name in open_modules:
            raise ImportError(f"the page's modules import each other in a circle: {' > '.join([*open_modules, name])}.")
        open_modules.append(name)
        text, needed = _module(name, read(name))
        for other in needed:
            add(other)
        open_modules.pop()
        done[name] = text

    add(MAIN)
    return '"use strict";\n(() => {\nconst modules = {};\n' + "".join(done.values()) + "})();\n"


@cache
def style() -> str:
    """All style sheets as one."""
    return "\n".join(read(name) for name in STYLES)
