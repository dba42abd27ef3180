"""Metrics of reconstructions: pixel errors and perceptual similarity."""
