"""One package per paper: its figures, tables and claims."""
