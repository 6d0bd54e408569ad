"""Members of the store seam, one file each."""
