"""The bench: methods x data x protocols, resumable, with tables that say how sure they are.

`run(plan, "results.db")` computes what the file lacks; `tables` and `curves` read it at any time.
"""

from vitrail.bench.ablations import ABLATIONS
from vitrail.bench.bootstrap import Estimate
from vitrail.bench.driver import Progress, run
from vitrail.bench.engines import Cluster, find_engine, local
from vitrail.bench.forms import render
from vitrail.bench.measures import MEASURES
from vitrail.bench.pairing import left_out
from vitrail.bench.plan import DataSpec, ModelSpec, Plan, Trial, protocols_of
from vitrail.bench.planfile import parse_data, parse_trials, read_plan
from vitrail.bench.plot import curves
from vitrail.bench.protocols import PROTOCOLS, Protocol, find_protocol
from vitrail.bench.recommend import Recommendation, measure, ranking, recommend
from vitrail.bench.table import Table, tables

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
