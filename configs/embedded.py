"""The pair that ships with the package; what launch/generate.py does unasked.

  python launch/generate.py --config=configs/embedded.py --prompt='def main('

A config holds any of the flags by name; a flag on the command line wins.
Every value can also be changed as --config.temperature=0.7.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  return ConfigDict(
      dict(
          target="embedded",
          drafter="autoregressive",
          drafter_model="embedded",
          num_speculative_tokens=4,
          rule="token",
          temperature=1.0,
          max_new_tokens=200,
      )
  )
