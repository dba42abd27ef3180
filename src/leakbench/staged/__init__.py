"""Staged files: where they lie and what they hold."""
