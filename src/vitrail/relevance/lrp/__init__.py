"""Rules of relevance propagation for unmodified models, as tables."""

from vitrail.relevance.lrp.mode import RuleSet, propagating
from vitrail.relevance.lrp.operation import Operation, Rule, bent

__all__ = ["Operation", "Rule", "RuleSet", "bent", "propagating"]
