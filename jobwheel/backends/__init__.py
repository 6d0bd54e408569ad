"""Members of the waiting-room seam, one file each."""
