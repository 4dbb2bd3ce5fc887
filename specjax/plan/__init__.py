"""Foresight: programs compiled for a TPU that is not here, and their cost."""
