"""Numerics of this project's own: optimisers on stacks of independent problems, and what they need of memory."""
