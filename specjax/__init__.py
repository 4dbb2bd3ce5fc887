"""specjax: exact speculative sampling in JAX."""

__version__ = "0.1.0"
