"""Formulas that this paper alone uses."""
