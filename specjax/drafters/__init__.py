"""Proposals: one kind, one file; none imports another."""
