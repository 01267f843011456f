"""Explanations that need a second input, a second class or a second model: guidance, detail, transfer, rewriting."""
