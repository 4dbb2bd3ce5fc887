"""Measurements: drafts against no drafts, interleaved, and their report."""
