"""Attacks on a released model: was an image trained on, and what do the images of a class look like."""
