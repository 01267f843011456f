"""What is made once in a run of the tests, however many processes share it."""

import fcntl
import json
import os


def made_once(tmp_path_factory, name, make):
    """What `make(folder)` returned as JSON, in the first worker that asked; the others wait and read it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the whole run
    folder = folder / f"made-once-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "found.json").exists():
            (folder / "found.json").write_text(json.dumps(make(folder)))
    return json.loads((folder / "found.json").read_text())
