"""How long the first minutes take: commands, the first explanation, the quick bench, and the page.

    python benchmarks/startup.py [--rounds 5] [--visitors 30] [--without-bench] [--without-page]

Prints Markdown. Commands: the least wall time and processor time over the rounds, peak memory and imported modules,
beside what Python and torch take in the same run; rounds go through all commands in turn, so that what else the machine
does meets all of them. The page is measured in Chromium (`app_page.py`) and through HTTP (`app.py`).
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import app

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
    "vitrail explain PICTURE -m photo": RUN.format(args=["explain", str(PICTURE), "-m", "photo"]),
    "vitrail explain TEXT -m sentiment": RUN.format(args=["explain", "a gripping film", "-m", "sentiment"]),
    "import torch, transformers ViT": "import torch; from transformers import ViTForImageClassification",
}
TARGETS = {
    "vitrail --version": "0.2 s",
    "vitrail --help": "0.5 s",
    "vitrail methods": "0.5 s",
    "TAB after --method": "0.5 s",
    "import vitrail; vitrail.explain": "torch + 0.3 s",
    "vitrail explain PICTURE -m photo": "torch + 2.5 s",
    "vitrail explain TEXT -m sentiment": "torch + 2.5 s",
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


def commands(rounds: int) -> None:
    """Print the table of commands."""
    found: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in CODES}
    for _ in range(rounds):
        for name, code in CODES.items():
            found[name].append(once(code))
    least = {name: [min(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    torch = least["import torch"]
    print("| what | wall s | processor s | above torch, wall, processor | target | MB | modules |")
    print("|---|---:|---:|---:|---|---:|---:|")
    for name, (wall, cpu, memory, modules) in least.items():
        above = f"{wall - torch[0]:.2f}, {cpu - torch[1]:.2f}" if wall > torch[0] else ""
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} | {above} | {TARGETS.get(name, '')} | {memory:.0f} | {modules} |")


def quick_bench() -> None:
    """Print what the quick bench takes."""
    with tempfile.TemporaryDirectory() as folder:
        code = RUN.format(args=["bench", "run", "--quick", "-o", str(Path(folder, "results.db"))])
        wall, cpu, memory, _ = once(code)
    print(f"\n`vitrail bench run --quick`: {wall:.0f} s, {cpu:.0f} processor seconds, {memory:.0f} MB.")


def page(rounds: int, visitors: int) -> None:
    """Print what the page takes: start, first maps, one load, and each action."""
    from app_page import launched, measure, sized
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = launched(running)
        first = sized(browser, 1280)
        with app.served() as (address, process, begun):
            first.goto(address)
            first.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            print(f"\n| page | |\n|---|---|\n| start to first paint | {time.perf_counter() - begun:.2f} s |")
            app.wait_for_models(address)
            ready = time.perf_counter()
            own, mapped = app.memory(process.pid)
            first.wait_for_selector("[data-ready=true]", timeout=120_000)
            print(f"| start to the model being there | {ready - begun:.2f} s |")
            print(f"| first map after the model is there | {time.perf_counter() - ready:.2f} s |")
            first.wait_for_selector("[data-settled=true]", timeout=120_000)
            print(f"| all three first maps after it | {time.perf_counter() - ready:.2f} s |")
            print(f"| memory after start | {own:.0f} MB of its own, {mapped:.0f} MB of mapped program files |")
            print(f"| static files, compressed | {app.weight_of(address):.0f} kB |")
            found = {width: measure(sized(browser, width), address) for width in (1280, 390)}
            print("\n| | 1280 pixels | 390 pixels |\n|---|---|---|")
            for name in found[1280]:
                print(f"| {name} | {found[1280][name]:.4g} | {found[390][name]:.4g} |")
            print()
            app.measure(address, rounds, visitors)
            own, mapped = app.memory(process.pid)
            print(f"\nMemory after all this: {own:.0f} MB of its own, {mapped:.0f} MB mapped.")
        browser.close()


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--visitors", type=int, default=30)
    parser.add_argument("--without-bench", action="store_true")
    parser.add_argument("--without-page", action="store_true")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["PYTHONPATH"] = str(SOURCE)
    print(f"Load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n")
    commands(given.rounds)
    if not given.without_bench:
        quick_bench()
    if not given.without_page:
        page(given.rounds, given.visitors)


if __name__ == "__main__":
    main()
