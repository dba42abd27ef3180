"""The kind of job for a question of this paper alone."""
