"""Qwen2 and 2.5 (biased q, k, v), Qwen3 (normed q and k), Qwen3-MoE."""

from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields, Piece

build, ALIASES = Decoder, llama.ALIASES


def config(f: Fields) -> Config:
  kind = f.take("model_type", str)
  old = kind == "qwen2"
  biased = old or f.take("attention_bias", bool, False)
  sparse = _mixture(f) if kind == "qwen3_moe" else {}
  return Config(
      **llama.shape(f, **({} if old else dict(head_dim=128))),
      **sparse,
      qkv_bias=biased,
      out_bias=biased and not old,
      qk_norm=not old,
      windows=() if sparse else _windows(f),
  )


def _windows(f) -> tuple:
  width = f.maybe("sliding_window", int)
  on = f.take("use_sliding_window", bool, False)
  first = f.take("max_window_layers", int, 28)
  return llama.windows(f, width if on else None, lambda i: i >= first)


def _mixture(f) -> dict:
  layers = f.take("num_hidden_layers", int)
  step = f.take("decoder_sparse_step", int, 1)
  plain = f.take("mlp_only_layers", list, [])
  if step < 1 or not all(type(i) is int and 0 <= i < layers for i in plain):
    f.refuse(
        f"decoder_sparse_step must be positive and mlp_only_layers within"
        f" 0..{layers - 1}"
    )
  rest = {i for i in range(layers) if (i + 1) % step}
  f.only("use_sliding_window", False)
  f.only("sliding_window")
  return dict(
      experts=f.take("num_experts", int),
      chosen=f.take("num_experts_per_tok", int),
      expert_mlp=f.take("moe_intermediate_size", int),
      renormalise=f.take("norm_topk_prob", bool, False),
      dense=tuple(sorted({*plain, *rest})),
  )


def pieces(c: Config) -> dict[str, Piece]:
  names = llama.pieces(c)
  for i in range(c.layers if c.experts else 0):
    if i in c.dense:
      continue
    theirs = f"model.layers.{i}.mlp"
    names[f"blocks.{i}.mlp.router"] = Piece((f"{theirs}.gate.weight",))
    for part in ("gate", "up", "down"):
      names[f"blocks.{i}.mlp.{part}"] = Piece(tuple(
          f"{theirs}.experts.{x}.{part}_proj.weight" for x in range(c.experts)
      ))
  return names
