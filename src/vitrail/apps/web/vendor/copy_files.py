"""Copy the page's libraries from npm into `static/vendor`, with their licences: `python copy_files.py`.

`npm ci` installs exactly what `package-lock.json` names. A browser resolves only relative paths under the page's
policy, so module names are rewritten; uPlot's minified form is no module and gets an export.
"""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
TO = HERE.parent / "static" / "vendor"
FILES = {
    "preact/dist/preact.module.js": "preact.js",
    "preact/hooks/dist/hooks.module.js": "hooks.js",
    "htm/dist/htm.module.js": "htm.js",
    "uplot/dist/uPlot.iife.min.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uPlot.min.css",
    "preact/LICENSE": "preact.LICENSE",
    "htm/LICENSE": "htm.LICENSE",
    "uplot/LICENSE": "uplot.LICENSE",
}
MORE = {"uplot.js": "export default uPlot;\n"}
NAMES = {'from"preact"': 'from"./preact.js"'}


def main() -> None:
    """Install into a folder of its own, then copy."""
    with TemporaryDirectory() as place:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, place)
        subprocess.run(["npm", "ci", "--silent"], cwd=place, check=True)
        for source, name in FILES.items():
            text = (Path(place) / "node_modules" / source).read_text("utf-8")
            for before, after in NAMES.items():
                text = text.replace(before, after)
            (TO / name).write_text(text.rstrip() + "\n" + MORE.get(name, ""), "utf-8")


if __name__ == "__main__":
    main()
