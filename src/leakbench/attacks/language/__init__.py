"""Models of what sentences look like: an attacker's idea of language."""
