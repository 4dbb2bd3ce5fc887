"""Phi-3: Llama with q, k, v in one tensor, and gate and up in another."""

from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields, Piece

build, ALIASES = Decoder, llama.ALIASES
# Switches of later Phi files, as far as they switch nothing.
NEUTRAL = dict(
    attention_bias=False, lm_head_bias=False, full_attn_mod=1,
    interpolate_factor=1,
)


def config(f: Fields) -> Config:
  for name, value in NEUTRAL.items():
    f.only(name, value)
  return Config(
      **llama.shape(f, rms_norm_eps=1e-5),
      windows=llama.windows(f, f.maybe("sliding_window", int)),
  )


def pieces(c: Config) -> dict[str, Piece]:
  q, kv = c.heads * c.dim, c.kv_heads * c.dim
  qkv = dict(q=(0, q), k=(q, q + kv), v=(q + kv, q + 2 * kv))
  names = llama.pieces(c)
  for i in range(c.layers):
    theirs = f"model.layers.{i}"
    for part, rows in qkv.items():
      names[f"blocks.{i}.attention.{part}"] = Piece(
          (f"{theirs}.self_attn.qkv_proj.weight",), slice(*rows)
      )
    for part, rows in dict(gate=(0, c.mlp), up=(c.mlp, 2 * c.mlp)).items():
      names[f"blocks.{i}.mlp.{part}"] = Piece(
          (f"{theirs}.mlp.gate_up_proj.weight",), slice(*rows)
      )
  return names
