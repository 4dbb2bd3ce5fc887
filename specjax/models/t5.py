"""T5, T5 v1.1 and their tuned offspring: the MLP and the head differ."""

from specjax.models.encoder_decoder import Config, EncoderDecoder
from specjax.models.llama import ACTS
from specjax.models.published import Fields, Piece

build = EncoderDecoder
ALIASES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "lm_head.weight": "shared.weight",  # a tied head
}
TOP = {
    "embedding": "shared.weight",
    "free_head": "lm_head.weight",
}
STACK = {
    "norm.weight": "final_layer_norm.weight",
    "relative.table":
        "block.0.layer.0.SelfAttention.relative_attention_bias.weight",
}
# A block is a list of layers, the MLP last: 0, 1 to encode, 0, 1, 2 to decode.
SELF = {
    "attention_norm.weight": "layer.0.layer_norm.weight",
    "attention.q": "layer.0.SelfAttention.q.weight",
    "attention.k": "layer.0.SelfAttention.k.weight",
    "attention.v": "layer.0.SelfAttention.v.weight",
    "attention.o": "layer.0.SelfAttention.o.weight",
}
CROSS = {
    "cross_norm.weight": "layer.1.layer_norm.weight",
    "cross.q": "layer.1.EncDecAttention.q.weight",
    "cross.k": "layer.1.EncDecAttention.k.weight",
    "cross.v": "layer.1.EncDecAttention.v.weight",
    "cross.o": "layer.1.EncDecAttention.o.weight",
}
MLP = {
    "mlp_norm.weight": "layer_norm.weight",
    "mlp.down": "DenseReluDense.wo.weight",
}
GATED = {
    "mlp.gate": "DenseReluDense.wi_0.weight",
    "mlp.up": "DenseReluDense.wi_1.weight",
}
PLAIN = {"mlp.up": "DenseReluDense.wi.weight"}


def config(f: Fields) -> Config:
  kind = f.take("feed_forward_proj", str, "relu")
  gated, act = kind.startswith("gated-"), kind.removeprefix("gated-")
  act = "gelu_new" if kind == "gated-gelu" else act  # as it was trained
  if act not in ACTS:
    f.refuse(f"feed_forward_proj = {kind[:60]!r} is none of {', '.join(ACTS)}")
  f.only("dense_act_fn", act)
  f.only("is_gated_act", gated)
  layers = f.take("num_layers", int)
  tied = f.take("tie_word_embeddings", bool, True)
  # What newer files say instead: a head of its own is not scaled.
  tied = f.take("scale_decoder_outputs", bool, tied)
  return Config(
      vocab=f.take("vocab_size", int),
      width=f.take("d_model", int),
      encoder_layers=layers,
      layers=f.take("num_decoder_layers", int, layers),
      heads=f.take("num_heads", int),
      dim=f.take("d_kv", int),
      mlp=f.take("d_ff", int),
      norm_eps=f.take("layer_norm_epsilon", float, 1e-6),
      gated=gated,
      act=ACTS[act],
      buckets=f.take("relative_attention_num_buckets", int, 32),
      max_distance=f.take("relative_attention_max_distance", int, 128),
      opening=f.take("decoder_start_token_id", int, 0),
      tied=tied,
  )


def pieces(c: Config) -> dict[str, Piece]:
  """Where each parameter of ours lies in a published file."""
  names = dict(TOP)
  for stack, layers, inner, last in (
      ("encoder", c.encoder_layers, SELF, 1),
      ("decoder", c.layers, SELF | CROSS, 2),
  ):
    names |= {f"{stack}.{a}": f"{stack}.{b}" for a, b in STACK.items()}
    mlp = MLP | (GATED if c.gated else PLAIN)
    block = inner | {a: f"layer.{last}.{b}" for a, b in mlp.items()}
    names |= {
        f"{stack}.blocks.{i}.{a}": f"{stack}.block.{i}.{b}"
        for i in range(layers)
        for a, b in block.items()
    }
  return {ours: Piece((theirs,)) for ours, theirs in names.items()}
