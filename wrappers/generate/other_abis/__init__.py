"""Fronts and backs: what translates between MPICH's binary interface and those of other MPIs."""
