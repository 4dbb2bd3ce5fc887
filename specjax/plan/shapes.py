"""Shapes of models, from the fields of a published config.json."""

import dataclasses
from typing import Any

from specjax.models import families
from specjax.models.decoder import Config


def decoder(name: str, fields: dict[str, Any], dtype: str) -> Config:
  """The decoder that a config's entry `name` describes.

  Raises ValueError where it has no fields, or they are not a decoder's.
  """
  if not fields:
    raise ValueError(
        f"config: {name} must be the fields of a config.json, since a plan"
        " reads shapes and no checkpoint; configs/qwen3_8b_0_6b.py:shapes is"
        " such a config."
    )
  _, c = families.read(f"config: {name}", fields)
  if not isinstance(c, Config):
    raise ValueError(
        f"config: {name} has an encoder (model_type"
        f" {fields['model_type']!r}); a plan is for decoders."
    )
  return dataclasses.replace(c, dtype=dtype)
