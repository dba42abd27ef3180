"""Workarounds for libraries: torch's compiler, the C library's memory, torchvision."""
