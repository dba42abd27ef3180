"""Configuration to jobs, and paths to jobs: all that the project would compute, without computing anything."""
