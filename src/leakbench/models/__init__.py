"""Architectures by name, with the parameter counts that the papers print."""
