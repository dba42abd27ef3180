"""Side-by-side speed and memory: each script prints ratios measured in one run."""
