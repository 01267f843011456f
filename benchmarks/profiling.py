"""Where the time of an explanation goes: host, device, launches and the largest operations, by torch.profiler.

    python benchmarks/profiling.py [--case "ViT-B/16 224, batch 64"] [--method gae] [--rows 12]

Each line of a method says how long one call takes by the clock, how long its kernels run on the device, how often a
kernel is launched and how often the host waits. Where the clock is far above the kernels, Python is what is paid for.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from flash import CASES, DEFAULT, tasks
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

NAMES = ("floor", DEFAULT, "gae", "tokentm", "attn_lrp")
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def clock(run: Callable[[], object], device: str, repeats: int = 3) -> float:
    """Seconds of one call without a profiler."""
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def summary(name: str, run: Callable[[], object], device: str, rows: int) -> str:
    """One call: a line of totals, then the operations that take most of the device or of the host."""
    run()
    seconds = clock(run, device)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as seen:
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    events = seen.key_averages()
    kernels = sum(e.self_device_time_total for e in events if e.device_type == DeviceType.CUDA)
    launches = sum(e.count for e in events if "LaunchKernel" in e.key)
    waits = sum(e.count for e in events if e.key in WAITING)
    totals = f"{1e3 * seconds:.2f} ms a call, {kernels / 1e3:.2f} ms of kernels, {launches} launches, {waits} waits"
    order = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    host = _lines(events, "self_cpu_time_total", rows // 2)
    return f"### {name}: {totals}\n{_lines(events, order, rows)}\nby host:\n{host}"


def _lines(events: Iterable[Any], order: str, rows: int) -> str:
    """The largest entries, shortly."""
    top = sorted(events, key=lambda e: -getattr(e, order))[:rows]
    return "\n".join(f"  {getattr(e, order) / 1e3:8.2f} ms {e.count:6d} x {e.key[:110]}" for e in top)


def main() -> None:
    """Profile the methods of the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--method", action="append", help="a name of benchmarks/flash.py")
    parser.add_argument("--rows", type=int, default=12)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for case in given.case or CASES:
        found = tasks(CASES[case], device, torch.bfloat16)
        for name in given.method or NAMES:
            print(f"\n## {case}")
            try:
                print(summary(name, found.pop(name), device, given.rows), flush=True)
            except Exception as error:
                print(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
