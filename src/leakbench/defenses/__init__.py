"""Client-side mechanisms, one file each."""
