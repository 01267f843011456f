"""The command line: `vitrail --help` is its manual."""

import sys


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        if sys.argv[1:2] == ["app"]:  # without the imports of the other commands the page is there at once
            from vitrail.apps.cli.serving import only as app
        else:
            from vitrail.apps.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in {"typer", "rich"}:
            raise
        sys.exit(f"error: the command line needs the package {error.name}: pip install 'vitrail[cli]'")
    app()


__all__ = ["main"]
