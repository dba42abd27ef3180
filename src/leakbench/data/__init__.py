"""Data sets by name: embedded ones that ship inside dependencies, and staged ones read from parquet files."""
