"""Kinds of job that serve this paper alone."""
