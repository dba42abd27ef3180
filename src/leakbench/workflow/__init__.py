"""What Snakemake's side of the house asks: the plan behind its rules, and how its jobs start, share nodes and end."""
