"""GPT-2: learned positions, layer norms, biases; weights are [in, out]."""

from specjax.models.decoder import Config, Decoder
from specjax.models.llama import ACTS
from specjax.models.published import Fields, Piece

build = Decoder
PREFIX = "transformer."  # in files that a later version wrote
ALIASES = {"lm_head.weight": "wte.weight"}
TOP = {
    "embedding": "wte.weight",
    "positions": "wpe.weight",
    "final_norm.weight": "ln_f.weight",
    "final_norm.bias": "ln_f.bias",
    "free_head": "lm_head.weight",
}
LAYER = {
    "attention_norm.weight": "ln_1.weight",
    "attention_norm.bias": "ln_1.bias",
    "mlp_norm.weight": "ln_2.weight",
    "mlp_norm.bias": "ln_2.bias",
    "attention.o_bias": "attn.c_proj.bias",
    "mlp.up_bias": "mlp.c_fc.bias",
    "mlp.down_bias": "mlp.c_proj.bias",
}
TURNED = {
    "attention.o": "attn.c_proj.weight",
    "mlp.up": "mlp.c_fc.weight",
    "mlp.down": "mlp.c_proj.weight",
}


def config(f: Fields) -> Config:
  f.only("scale_attn_weights", True)
  f.only("scale_attn_by_inverse_layer_idx", False)
  f.only("add_cross_attention", False)
  f.only("n_special", 0)
  f.take("reorder_and_upcast_attn", bool, False)  # the same in float32
  width, heads = f.take("n_embd", int), f.take("n_head", int)
  act = f.take("activation_function", str, "gelu_new")
  if act not in ACTS:
    f.refuse(f"activation_function = {act[:60]!r} is none of {', '.join(ACTS)}")
  return Config(
      vocab=f.take("vocab_size", int),
      width=width,
      layers=f.take("n_layer", int),
      heads=heads,
      kv_heads=heads,
      dim=width // max(heads, 1),
      mlp=f.take("n_inner", int, 4 * width),
      norm="layer",
      norm_eps=f.take("layer_norm_epsilon", float, 1e-5),
      qkv_bias=True,
      out_bias=True,
      mlp_bias=True,
      gated=False,
      act=ACTS[act],
      positions="learned",
      max_positions=f.take("n_positions", int, 1024),
      tied=f.take("tie_word_embeddings", bool, True),
  )


def pieces(c: Config) -> dict[str, Piece]:
  names = {ours: Piece((theirs,)) for ours, theirs in TOP.items()}
  for i in range(c.layers):
    for ours, theirs in LAYER.items():
      names[f"blocks.{i}.{ours}"] = Piece((f"h.{i}.{theirs}",))
    for ours, theirs in TURNED.items():
      names[f"blocks.{i}.{ours}"] = Piece((f"h.{i}.{theirs}",), turned=True)
    for n, part in enumerate("qkv"):
      rows = slice(n * c.width, (n + 1) * c.width)
      fused = f"h.{i}.attn.c_attn"
      names |= {
          f"blocks.{i}.attention.{part}": Piece(
              (f"{fused}.weight",), rows, turned=True
          ),
          f"blocks.{i}.attention.{part}_bias": Piece((f"{fused}.bias",), rows),
      }
  return names
