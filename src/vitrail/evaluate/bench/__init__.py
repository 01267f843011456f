"""The bench: methods x data x protocols, resumable, with tables that say how sure they are.

`run(plan, "results.db")` computes what the file lacks; `tables` and `curves` read it at any time.
"""

from vitrail.evaluate.bench.bootstrap import Estimate
from vitrail.evaluate.bench.driver import Progress, left_out, run
from vitrail.evaluate.bench.engines import Cluster, find_engine, local
from vitrail.evaluate.bench.forms import render
from vitrail.evaluate.bench.measures import MEASURES
from vitrail.evaluate.bench.plan import ABLATIONS, DataSpec, ModelSpec, Plan, Trial, protocols_of
from vitrail.evaluate.bench.planfile import parse_data, parse_trials, read_plan
from vitrail.evaluate.bench.plot import curves
from vitrail.evaluate.bench.protocols import PROTOCOLS, Protocol, find_protocol
from vitrail.evaluate.bench.recommend import Recommendation, measure, ranking, recommend
from vitrail.evaluate.bench.table import Table, tables

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
