"""Llama 2, 3, 3.1 and later, SmolLM2, Mistral; others build on its names."""

from specjax.models.decoder import Config, Decoder
from specjax.models.published import Fields, Piece, rope
from specjax.models.rope import Rope

build = Decoder
ALIASES = {"lm_head.weight": "model.embed_tokens.weight"}  # a tied head
ACTS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
TOP = {
    "embedding": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "free_head": "lm_head.weight",
}
LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.o": "self_attn.o_proj.weight",
    "attention.q_bias": "self_attn.q_proj.bias",
    "attention.k_bias": "self_attn.k_proj.bias",
    "attention.v_bias": "self_attn.v_proj.bias",
    "attention.o_bias": "self_attn.o_proj.bias",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
    "mlp.gate_bias": "mlp.gate_proj.bias",
    "mlp.up_bias": "mlp.up_proj.bias",
    "mlp.down_bias": "mlp.down_proj.bias",
}


def config(f: Fields) -> Config:
  biased = f.take("attention_bias", bool, False)
  return Config(
      **shape(f),
      qkv_bias=biased,
      out_bias=biased,
      mlp_bias=f.take("mlp_bias", bool, False),
  )


def shape(f: Fields, act: str = "hidden_act", **defaults) -> dict:
  """The fields of `Config` that all relatives of Llama read alike.

  `defaults` are those of a family, for fields that its files may leave out.
  """
  heads, width = f.take("num_attention_heads", int), f.take("hidden_size", int)
  acts = f.take(act, str, defaults.get(act, "silu"))
  if acts not in ACTS:
    f.refuse(f"{act} = {acts[:60]!r} is none of {', '.join(ACTS)}")
  dim = defaults.get("head_dim", width // max(heads, 1))
  turn, local = ropes(f, defaults.get("rope_theta", 10000.0))
  return dict(
      vocab=f.take("vocab_size", int),
      width=width,
      layers=f.take("num_hidden_layers", int),
      heads=heads,
      kv_heads=f.take("num_key_value_heads", int, heads),
      dim=f.take("head_dim", int, dim),
      mlp=f.take("intermediate_size", int),
      norm_eps=f.take(
          "rms_norm_eps", float, defaults.get("rms_norm_eps", 1e-6)
      ),
      act=ACTS[acts],
      rope=turn,
      local_rope=local,
      max_positions=turn.original if turn.scaling == "longrope" else 0,
      tied=f.take(
          "tie_word_embeddings", bool,
          defaults.get("tie_word_embeddings", False),
      ),
  )


def ropes(f: Fields, theta: float) -> tuple[Rope, Rope | None]:
  """Rotary settings of all layers, and of windowed ones where they differ.

  Read from rope_theta, rope_scaling and rope_local_base_freq, or from
  rope_parameters, as later files have them.
  """
  theta = f.take("rope_theta", float, theta)
  turned = f.take("partial_rotary_factor", float, 1.0)
  local = f.maybe("rope_local_base_freq", float)
  given = f.part("rope_parameters")
  if given and given.has("full_attention"):
    full, slides = (
        given.part(f"{kind}_attention") for kind in ("full", "sliding")
    )
    given.close()
    return (
        rope(f, theta, full, fraction=turned),
        rope(f, local or 10000.0, slides, fraction=turned),
    )
  scaled = f.part("rope_scaling")
  if given and scaled:
    f.refuse("it has both rope_parameters and rope_scaling; keep one")
  scaled = scaled or given
  return (
      rope(f, theta, scaled, fraction=turned),
      None if local is None else rope(f, local, None, fraction=turned),
  )


def windows(f: Fields, width: int | None, slides=lambda i: True) -> tuple:
  """One window a layer: by layer_types, else where `slides(layer)` says so."""
  layers = f.take("num_hidden_layers", int)
  kinds = f.maybe("layer_types", list)
  if kinds is not None:
    known = {"sliding_attention": True, "full_attention": False}
    if len(kinds) != layers or any(str(k) not in known for k in kinds):
      f.refuse(
          f"layer_types must name one of {', '.join(known)} for each of"
          f" {layers} layers"
      )
    slides = lambda i: known[kinds[i]]
  if not width or not any(map(slides, range(layers))):
    return ()
  return tuple(width if slides(i) else 0 for i in range(layers))


def pieces(c: Config, layer: dict[str, str] = LAYER) -> dict[str, Piece]:
  """Every name a relative of Llama may have: ours -> published."""
  names = dict(TOP)
  for i in range(c.layers):
    names |= {
        f"blocks.{i}.{ours}": f"model.layers.{i}.{theirs}"
        for ours, theirs in layer.items()
    }
  return {ours: Piece((theirs,)) for ours, theirs in names.items()}
