"""The bench: methods x data x protocols, resumable, with confidence intervals.

`run(plan, "results.db")` computes what the file lacks; `tables` and `curves` read it at any time.
"""

from vitrail.evaluate.bench.driver import Progress, left_out, run
from vitrail.evaluate.bench.engines import Cluster, find_engine, local
from vitrail.evaluate.bench.forms import Recommendation, curves, measure, ranking, recommend, render
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.plan import ABLATIONS, DataSpec, ModelSpec, Plan, Trial, protocols_of
from vitrail.evaluate.bench.planfile import parse_data, parse_trials, read_plan
from vitrail.evaluate.bench.protocols import PROTOCOLS, Protocol, find_protocol
from vitrail.evaluate.bench.table import Estimate, Table, tables

__all__ = [
    "ABLATIONS",
    "MEASURES",
    "PROTOCOLS",
    "Cluster",
    "DataSpec",
    "Estimate",
    "ModelSpec",
    "Plan",
    "Progress",
    "Protocol",
    "Recommendation",
    "Table",
    "Trial",
    "curves",
    "find_engine",
    "find_protocol",
    "left_out",
    "local",
    "measure",
    "parse_data",
    "parse_trials",
    "protocols_of",
    "ranking",
    "read_plan",
    "recommend",
    "render",
    "run",
    "tables",
]
