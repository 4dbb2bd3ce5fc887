"""Targets: one decoder whose config covers the common shapes."""
