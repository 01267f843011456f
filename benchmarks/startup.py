"""How long a command takes before it computes anything, beside what Python and torch take in the same run.

Usage: python benchmarks/startup.py [ROUNDS]. Prints a table: the least wall time and processor time over the rounds,
peak memory and the number of imported modules. Rounds go through all commands in turn, so that what else the machine
does meets all of them.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PICTURE = SOURCE / "vitrail/apps/demo/pictures/golf_ball.jpg"
RUN = "import sys; sys.argv = ['vitrail', *{args!r}]\nfrom vitrail.apps.cli import main; main()"
TYPED = {"_VITRAIL_COMPLETE": "complete_bash", "COMP_WORDS": "vitrail explain --method ga", "COMP_CWORD": "3"}
COMPLETE = f"import os; os.environ.update({TYPED!r})\n"
CODES = {
    "python -c pass": "pass",
    "import typer, rich": "import typer, rich",
    "import torch": "import torch",
    "import vitrail": "import vitrail",
    "import vitrail; vitrail.explain": "import vitrail; vitrail.explain",
    "vitrail --version": RUN.format(args=["--version"]),
    "vitrail --help": RUN.format(args=["--help"]),
    "vitrail methods": RUN.format(args=["methods"]),
    "TAB after --method": COMPLETE + "from vitrail.apps.cli.app import app; app(prog_name='vitrail')",
    "vitrail explain, misspelt method": RUN.format(args=["explain", str(PICTURE), "-m", "photo", "--method", "gea"]),
    "import torch, transformers ViT": "import torch; from transformers import ViTForImageClassification",
    "vitrail explain PICTURE -m photo": RUN.format(args=["explain", str(PICTURE), "-m", "photo"]),
}
COUNT = "import atexit, sys\natexit.register(lambda: print(len(sys.modules), file=sys.stderr))\n"


def once(code: str) -> tuple[float, float, float, int]:
    """Wall seconds, processor seconds, megabytes and modules of one run."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT + code], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, _, used = os.wait4(process.pid, 0)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, int(said.split()[-1])


def main(rounds: int) -> None:
    """Print the table."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in CODES}
    for _ in range(rounds):
        for name, code in CODES.items():
            found[name].append(once(code))
    print("| what | wall s | processor s | MB | modules |\n|---|---:|---:|---:|---:|")
    for name, runs in found.items():
        wall, cpu, memory, modules = (min(column) for column in zip(*runs, strict=True))
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} | {memory:.0f} | {modules} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
