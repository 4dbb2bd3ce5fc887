"""The table of model types: which family reads a published config.

A family is a module with `config(Fields)`, `pieces(config)` and `build`.
"""

from types import ModuleType
from typing import Any

from specjax.models import gemma, gpt2, llama, mistral, mixtral, phi3, qwen, t5
from specjax.models.published import Fields

FAMILIES = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen,
    "qwen3": qwen,
    "qwen3_moe": qwen,
    "gemma2": gemma,
    "gemma3_text": gemma,
    "phi3": phi3,
    "gpt2": gpt2,
    "mixtral": mixtral,
    "t5": t5,
}


def read(path: str, fields: dict[str, Any]) -> tuple[ModuleType, Any]:
  """(family, its Config) of a config.json's fields; `path` is for sentences.

  Raises ValueError naming a model_type that no family reads, a field that is
  missing or wrong, or one that may change the numbers and is not understood.
  """
  f = Fields(path, fields)
  kind = f.take("model_type", str)
  if kind not in FAMILIES:
    f.refuse(
        f"model_type {kind[:60]!r} is none of {', '.join(FAMILIES)}"
    )
  family = FAMILIES[kind]
  try:
    config = family.config(f)
  except ValueError as error:
    f.refuse(str(error).removeprefix(f"{path}: ").rstrip("."))
  f.close()
  return family, config
