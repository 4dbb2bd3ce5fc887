"""specjax: exact speculative sampling in JAX."""

from specjax.engine import generate
from specjax.metrics import summary
from specjax.states import (
    fork,
    outputs_of,
    prefill,
    refill,
    resume,
    rewind,
    texts_of,
)

__version__ = "0.1.0"
__all__ = [
    "fork",
    "generate",
    "outputs_of",
    "prefill",
    "refill",
    "resume",
    "rewind",
    "summary",
    "texts_of",
]
