"""Networks that make images of low-resolution, noisy ones: an attacker's idea of what images look like."""
