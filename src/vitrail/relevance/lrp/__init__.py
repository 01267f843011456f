"""Rules of relevance propagation for unmodified models, as tables."""

from vitrail.relevance.lrp.mode import RuleSet, propagating
from vitrail.relevance.lrp.operation import Operation, Rule, overridden

__all__ = ["Operation", "Rule", "RuleSet", "overridden", "propagating"]
