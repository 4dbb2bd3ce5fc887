"""Gemma 2 and 3, text: four norms a layer, 1 + weight, alternating windows."""

from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields, Piece
from specjax.models.rope import Rope

build, ALIASES = Decoder, llama.ALIASES
ACT = "hidden_activation"
LAYER = llama.LAYER | {
    "attention_post.weight": "post_attention_layernorm.weight",
    "mlp_norm.weight": "pre_feedforward_layernorm.weight",
    "mlp_post.weight": "post_feedforward_layernorm.weight",
}


def config(f: Fields) -> Config:
  third = f.take("model_type", str) == "gemma3_text"
  f.only("hidden_act", "gelu_pytorch_tanh")
  f.only("use_bidirectional_attention", False)
  shape = llama.shape(
      f, ACT, head_dim=256, tie_word_embeddings=True,
      rope_theta=1e6 if third else 1e4, **{ACT: "gelu_pytorch_tanh"},
  )
  if third and shape["local_rope"] is None:
    shape["local_rope"] = Rope()
  biased = f.take("attention_bias", bool, False)
  scalar = f.take("query_pre_attn_scalar", float, 256.0)
  if scalar <= 0:
    f.refuse(f"query_pre_attn_scalar = {scalar} must be positive")
  cap = lambda name, old: f.take(name, float, 0.0 if third else old)
  return Config(
      **shape,
      qkv_bias=biased,
      out_bias=biased,
      qk_norm=third,
      norm_offset=1.0,
      post_norm=True,
      scale=scalar**-0.5,
      score_cap=cap("attn_logit_softcapping", 50.0),
      logit_cap=cap("final_logit_softcapping", 30.0),
      embed_scale=shape["width"] ** 0.5,
      windows=_windows(f, third),
  )


def _windows(f, third) -> tuple:
  """Every other layer has a window, or all but every sixth."""
  pattern = 2
  if third:
    pattern = f.take("_sliding_window_pattern", int, 6)
    pattern = f.take("sliding_window_pattern", int, pattern)
  if pattern < 1:
    f.refuse(f"sliding_window_pattern = {pattern} must be positive")
  width = f.take("sliding_window", int, 4096)
  f.only("sliding_window_size", width)  # Gemma 2 says it twice
  return llama.windows(f, width, lambda i: (i + 1) % pattern > 0)


def pieces(c: Config) -> dict[str, Piece]:
  return llama.pieces(c, LAYER)
