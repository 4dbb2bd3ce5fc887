"""The pair that ships with the package: it speaks Python source.

Trained by `launch/train.py --config=configs/tiny.py`; README has its numbers.
"""

import importlib.resources

from specjax.checkpoint import safetensors
from specjax.models.decoder import Decoder
from specjax.text import Tokenizer


def model(name: str, dtype: str = "float32") -> Decoder:
  """The embedded "target" (8 M parameters) or "drafter" (1 M)."""
  if name not in ("target", "drafter"):
    raise ValueError(f"embedded model {name!r}: target or drafter.")
  file = importlib.resources.files(__name__) / f"{name}.safetensors"
  with importlib.resources.as_file(file) as path:
    return safetensors.load(path, dtype)


def tokenizer() -> Tokenizer:
  """The byte-level BPE tokenizer of the embedded pair, 4,096 entries."""
  return Tokenizer.embedded()
