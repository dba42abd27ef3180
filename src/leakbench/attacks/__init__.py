"""Attacks by name, and the batched gradient-matching engine that they share."""
