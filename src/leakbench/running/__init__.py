"""A job that runs: what it leaves on the way, how it goes on when it was killed, what it shows."""
