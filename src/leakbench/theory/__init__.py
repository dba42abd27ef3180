"""Bounds, optimal mechanisms and accountants as pure functions of arrays."""
