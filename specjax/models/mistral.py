"""Mistral: Llama without biases, with a window unless its file says null."""

from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields

build, ALIASES, pieces = Decoder, llama.ALIASES, llama.pieces


def config(f: Fields) -> Config:
  f.only("attention_bias", False)
  width = f.maybe("sliding_window", int) if f.says("sliding_window") else 4096
  return Config(**llama.shape(f), windows=llama.windows(f, width))
