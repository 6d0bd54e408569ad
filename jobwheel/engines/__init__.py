"""Members of the engine seam, one file each."""
