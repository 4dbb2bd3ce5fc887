"""Mixtral: Mistral whose MLPs are mixtures; w1 = gate, w3 = up, w2 = down."""

from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields, Piece

build, ALIASES = Decoder, llama.ALIASES


def config(f: Fields) -> Config:
  return Config(
      **llama.shape(f, rope_theta=1e6, rms_norm_eps=1e-5),
      experts=f.take("num_local_experts", int, 8),
      chosen=f.take("num_experts_per_tok", int, 2),
      expert_mlp=f.take("intermediate_size", int),
      windows=llama.windows(f, f.maybe("sliding_window", int)),
  )


def pieces(c: Config) -> dict[str, Piece]:
  names = llama.pieces(c)
  for i in range(c.layers):
    theirs = f"model.layers.{i}.block_sparse_moe"
    names[f"blocks.{i}.mlp.router"] = Piece((f"{theirs}.gate.weight",))
    for ours, w in dict(gate="w1", up="w3", down="w2").items():
      names[f"blocks.{i}.mlp.{ours}"] = Piece(tuple(
          f"{theirs}.experts.{x}.{w}.weight" for x in range(c.experts)
      ))
  return names
