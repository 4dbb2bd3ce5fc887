"""What GGUF calls things: its metadata as config.json, its tensors' names.

Keys of the architecture are read strictly: what is not understood is refused
by name, since it may change the numbers.
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from specjax.models.published import Fields
from specjax.models.rope import Rope

BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Architecture(NamedTuple):
  """A kind of model: its names, and what its converter changed.

  `changed`: parts of a layer -> pairs (a head's halves interleaved), offset
  (1 + weight) or turned ([out, in] for [in, out]).
  """

  model_type: str
  top: dict[str, str] = TOP
  layer: dict[str, str] = LAYER
  prefix: str = "model.layers"
  changed: dict[str, str] = {}

  def named(self, name: str) -> tuple[str | None, str]:
    """(Hugging Face name or None, change) of a tensor."""
    if name in self.top:
      return self.top[name], self.changed.get(name, "none")
    block = BLOCK.fullmatch(name)
    if not block or block[2] not in self.layer:
      return None, "none"
    theirs = f"{self.prefix}.{block[1]}.{self.layer[block[2]]}.{block[3]}"
    key = block[2] if block[2] in self.changed else f"{block[2]}.{block[3]}"
    return theirs, self.changed.get(key, "none")


GEMMA = LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OFFSET = dict.fromkeys(
    [*(n for n in GEMMA if n.endswith("_norm")), "output_norm.weight"], "offset"
)
PHI3 = {n: x for n, x in LAYER.items() if n not in ("attn_q", "ffn_gate")} | {
    "attn_qkv": "self_attn.qkv_proj",
    "ffn_up": "mlp.gate_up_proj",
}
GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
GPT2_TOP = {
    "token_embd.weight": "wte.weight",
    "position_embd.weight": "wpe.weight",
    "output_norm.weight": "ln_f.weight",
    "output_norm.bias": "ln_f.bias",
    "output.weight": "lm_head.weight",
}
TURNED = dict.fromkeys(
    ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight",
     "ffn_down.weight"), "turned"
)
ARCHITECTURES = {
    "llama": Architecture(
        "llama", changed=dict(attn_q="pairs", attn_k="pairs")
    ),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma2": Architecture("gemma2", layer=GEMMA, changed=OFFSET),
    "gemma3": Architecture("gemma3_text", layer=GEMMA, changed=OFFSET),
    "phi3": Architecture("phi3", layer=PHI3),
    "gpt2": Architecture("gpt2", GPT2_TOP, GPT2, "h", TURNED),
}


def config(
    path: str, kind: str, metadata: dict[str, Any], shapes, factors
) -> dict[str, Any]:
  """config.json's fields; `factors` are the rotary tensors of the file.

  Raises ValueError naming a key that is missing, wrong or not understood.
  """
  own = {
      key: value if not isinstance(value, list | np.ndarray)
      else f"a list of {len(value)}"
      for key, value in metadata.items() if key.startswith(f"{kind}.")
  }
  f = Fields(path, own)
  model_type = ARCHITECTURES[kind].model_type
  take = lambda name, *rest: f.take(f"{kind}.{name}", *rest)
  embedding = shapes.get(ARCHITECTURES[kind].top["token_embd.weight"], (0,))
  out = dict(
      model_type=model_type,
      vocab_size=embedding[0],
      tie_word_embeddings="lm_head.weight" not in shapes,
      **_ends(metadata),
  )
  take("vocab_size", int, 0)  # the embedding's rows are what counts
  take("tensor_data_layout", str, "")
  take("rope.scaling.finetuned", bool, False)
  f.only(f"{kind}.attention.causal", True)
  f.only(f"{kind}.expert_count", 0)
  f.only(f"{kind}.expert_used_count", 0)
  if kind == "gpt2":
    out |= dict(
        n_embd=take("embedding_length", int),
        n_head=take("attention.head_count", int),
        n_layer=take("block_count", int),
        n_positions=take("context_length", int),
        n_inner=take("feed_forward_length", int),
        layer_norm_epsilon=take("attention.layer_norm_epsilon", float),
        activation_function="gelu_new",
    )
    f.only("gpt2.attention.head_count_kv", out["n_head"])
  else:
    out |= _llama(f, kind, take, shapes, factors)
  f.close()
  return out


def _llama(f, kind, take, shapes, factors) -> dict:
  """The fields of Llama and its relatives."""
  heads = take("attention.head_count", int)
  width = take("embedding_length", int)
  layers = take("block_count", int)
  dim = take("attention.key_length", int, width // max(heads, 1))
  if min(heads, width, layers, dim) < 1:
    f.refuse("its heads, layers and widths must be positive")
  f.only(f"{kind}.attention.value_length", dim)
  gemma = kind in ("gemma2", "gemma3")
  theta = take("rope.freq_base", float, 1e6 if kind == "gemma3" else 1e4)
  out = dict(
      hidden_size=width,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      num_key_value_heads=take("attention.head_count_kv", int, heads),
      head_dim=dim,
      intermediate_size=take("feed_forward_length", int),
      rms_norm_eps=take("attention.layer_norm_rms_epsilon", float),
      max_position_embeddings=take("context_length", int),
      rope_theta=theta,
  )
  if out["num_key_value_heads"] < 1:
    f.refuse(f"{kind}.attention.head_count_kv must be positive")
  out["hidden_activation" if gemma else "hidden_act"] = (
      "gelu_pytorch_tanh" if gemma else "silu"
  )
  turned = take("rope.dimension_count", int, dim)
  if turned != dim and not gemma:  # Gemma's converter writes another number
    out["partial_rotary_factor"] = turned / dim
  out |= _scaling(f, kind, take, turned, theta, factors)
  biased = "model.layers.0.self_attn.{}_proj.bias".format
  if kind != "qwen2" and biased("q") in shapes:
    out["attention_bias"] = True
  if "model.layers.0.mlp.up_proj.bias" in shapes:
    out["mlp_bias"] = True
  window = take("attention.sliding_window", int, 4096 if gemma else 0)
  if gemma:
    # The largest model of each kind has its own scale, told by its layers.
    large = layers == {"gemma2": 46, "gemma3": 62}[kind]
    out |= dict(
        sliding_window=window,
        query_pre_attn_scalar=width // heads if large else dim,
    )
    for cap, default in dict(
        attn_logit_softcapping=50.0, final_logit_softcapping=30.0
    ).items():
      out[cap] = take(cap, float, 0.0 if kind == "gemma3" else default) or None
  if kind == "gemma3":
    local = take("rope.freq_base_swa", float, 1e4)
    out |= dict(rope_local_base_freq=local, sliding_window_pattern=6)
  if window and not gemma:
    if kind not in ("phi3", "llama"):
      f.refuse(f"{kind}.attention.sliding_window = {window} is not known there")
    out["sliding_window"] = window
  return out


def _scaling(f, kind, take, turned, theta, factors) -> dict:
  """rope_scaling and what belongs to it."""
  name = take("rope.scaling.type", str, "linear")
  linear = take("rope.scale_linear", float, 1.0)
  factor = take("rope.scaling.factor", float, linear)
  original = take("rope.scaling.original_context_length", int, 0)
  attention = f.maybe(f"{kind}.rope.scaling.attn_factor", float)
  given = {n.split(".")[0]: x for n, x in factors.items()}
  for part, x in given.items():
    if x.size != turned // 2 or not np.all(np.isfinite(x) & (x > 0)):
      f.refuse(f"{part}.weight must hold {turned // 2} positive numbers")
  plain = name == "none" or name == "linear" and factor == 1
  if set(given) == {"rope_freqs"} and plain:
    return _llama3(f, given["rope_freqs"], turned, theta)
  if {"rope_factors_short", "rope_factors_long"} == set(given):
    numbers = lambda x: [float(str(v)) for v in x.astype(np.float32)]
    scaled = dict(
        type="longrope",
        short_factor=numbers(given["rope_factors_short"]),
        long_factor=numbers(given["rope_factors_long"]),
    )
    if attention is not None:
      scaled["attention_factor"] = attention
    more = dict(original_max_position_embeddings=original) if original else {}
    return dict(rope_scaling=scaled) | more
  if given:
    f.refuse(f"{sorted(given)[0]}.weight does not fit rope.scaling.type {name}")
  if plain:
    return {}
  if name not in ("linear", "yarn"):
    f.refuse(f"rope.scaling.type {name[:40]!r} is not known")
  scaled = dict(rope_type=name, factor=factor)
  if name == "yarn":
    scaled |= dict(
        original_max_position_embeddings=original,
        beta_fast=take("rope.scaling.yarn_beta_fast", float, 32.0),
        beta_slow=take("rope.scaling.yarn_beta_slow", float, 1.0),
    )
    if attention is not None:
      scaled["attention_factor"] = attention
  return dict(rope_scaling=scaled)


def _llama3(f, freqs, turned, theta) -> dict:
  """Llama 3.1's scaling, found again in the divisors that it became.

  All published ones keep turns above 4 and scale those below 1; the trained
  length follows from any divisor between, and all of them must agree.
  """
  factor = float(freqs.max())
  plain = Rope(theta).frequencies(turned) if theta >= 1 else freqs * np.nan
  known = dict(low=1.0, high=4.0)
  between = [i for i, x in enumerate(freqs) if 1.0 < x < factor]
  if factor == 1.0:
    return {}
  if between:
    i = between[0]
    keep = (1 / freqs[i] - 1 / factor) / (1 - 1 / factor)
    turns = known["low"] + keep * (known["high"] - known["low"])
    length = turns * 2 * math.pi / plain[i]
    if 1 <= length < 2**31:
      rope = Rope(theta, scaling="llama3", factor=factor,
                  original=round(length), **known)
      if np.allclose(plain / rope.frequencies(turned), freqs, 1e-4, 0):
        return dict(rope_scaling=dict(
            rope_type="llama3", factor=factor, low_freq_factor=known["low"],
            high_freq_factor=known["high"],
            original_max_position_embeddings=rope.original,
        ))
  f.refuse("rope_freqs.weight is none of Llama 3's scalings")


def _ends(metadata) -> dict:
  """Ids of bos and eos, as far as they are ids at all."""
  ids = {
      end: metadata.get(f"tokenizer.ggml.{end}_token_id")
      for end in ("bos", "eos", "eot", "eom")
  }
  ids = {end: i for end, i in ids.items() if type(i) is int}
  last = list(dict.fromkeys(i for end, i in ids.items() if end != "bos"))
  return dict(
      bos_token_id=ids.get("bos"),
      eos_token_id=last if len(last) > 1 else last[0] if last else None,
  )
