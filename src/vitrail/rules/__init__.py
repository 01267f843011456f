"""Rules of relevance propagation for unmodified models, as tables."""

from vitrail.rules.mode import RuleSet, propagating
from vitrail.rules.operation import Operation, Rule, bent

__all__ = ["Operation", "Rule", "RuleSet", "bent", "propagating"]
