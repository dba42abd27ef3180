"""What other people's libraries need to be told: torch's compiler, the C library's memory, torchvision."""
