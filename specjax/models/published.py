"""How published checkpoints name things: fields of a config, tensors of a part.

A family maps a config's fields to ours and our parameters to published
tensors. What it does not understand is refused by name, never ignored.
"""

import math
from typing import Any, NamedTuple

from specjax.models.rope import Rope

# Fields that leave the numbers of a forward pass as they are.
HARMLESS = frozenset("""
  architectures model_type torch_dtype dtype transformers_version use_cache
  _name_or_path auto_map task_specific_params id2label label2id tokenizer_class
  bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id
  decoder_start_token_id is_encoder_decoder is_decoder language
  initializer_range initializer_factor attention_dropout hidden_dropout
  dropout dropout_rate classifier_dropout classifier_dropout_prob attn_pdrop
  embd_pdrop resid_pdrop router_aux_loss_coef router_jitter_noise
  output_router_logits output_hidden_states output_attentions return_dict
  output_past predict_special_tokens _num_labels num_labels torchscript
  gradient_checkpointing use_bfloat16 tf_legacy_loss _model_name_or_path
  pretraining_tp cache_implementation _attn_implementation
  _attn_implementation_autoset attn_implementation problem_type finetuning_task
  prefix chunk_size_feed_forward cross_attention_hidden_size
  n_ctx n_positions use_return_dict keys_to_ignore_at_inference
  summary_type summary_use_proj summary_activation summary_proj_to_labels
  summary_first_dropout max_length min_length do_sample early_stopping
  num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
  repetition_penalty length_penalty no_repeat_ngram_size
  encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
  output_scores return_dict_in_generate forced_bos_token_id
  forced_eos_token_id remove_invalid_values
  exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
  max_position_embeddings max_window_layers original_max_position_embeddings
  transformers.js_config unsloth_fixed unsloth_version is_llama_config
""".split())
# Switches of relatives that no family here has, where they are off.
OFF = frozenset("""
  add_cross_attention attention_bias is_gated_act lm_head_bias mlp_bias
  rope_interleaved rope_scaling_interleaved scale_embedding tie_encoder_decoder
  use_bidirectional_attention use_mrope use_parallel_residual use_qk_norm
  use_sliding_window
""".split())
LARGEST = {int: 2**24, float: 1e30}  # no honest width or rotary base is above


class Piece(NamedTuple):
  """Where a parameter of ours lies in published tensors.

  Several `names` are stacked on a new first axis (experts). `rows`: only
  these entries of the first axis, after turning. `turned`: published as
  [in, out].
  """

  names: tuple[str, ...]
  rows: slice | None = None
  turned: bool = False


class Fields:
  """A config.json read strictly, with sentences that name file and field.

  `take` and `only` note what was understood; `close` refuses the rest.
  """

  def __init__(self, path: str, config: dict[str, Any]):
    self.path, self._config, self._taken = path, config, set()

  def take(self, name: str, kind: type, default=None):
    """The field's value as `kind`; `default` when absent or null.

    Without a default it must be there.
    """
    self._taken.add(name)
    value = self._config.get(name)
    if value is None:
      if default is None:
        self.refuse(f"{name} is missing")
      return default
    whole = isinstance(value, int) and not isinstance(value, bool)
    ok = isinstance(value, kind) if kind in (str, list, dict, bool) else (
        whole or kind is float and isinstance(value, float)
    )
    if not ok:
      self.refuse(f"{name} = {repr(value)[:60]} is no {kind.__name__}")
    most = LARGEST.get(kind)
    if most and not abs(value) <= most:  # nor NaN
      self.refuse(f"{name} = {repr(value)[:60]} is not within {most:g}")
    return kind(value)

  def maybe(self, name: str, kind: type):
    """As `take`, None when absent or null."""
    there = self._config.get(name) is not None
    self._taken.add(name)
    return self.take(name, kind) if there else None

  def only(self, name: str, *values) -> None:
    """Refuses any value but these, as it would change the numbers."""
    self._taken.add(name)
    value = self._config.get(name)
    if value is not None and value not in values:
      known = " or ".join(map(repr, values)) or "null"
      self.refuse(f"{name} = {repr(value)[:60]}; only {known} is supported")

  def part(self, name: str) -> "Fields | None":
    """A field that is itself an object, to be read and closed likewise."""
    value = self.maybe(name, dict)
    return None if value is None else Fields(f"{self.path}: {name}", value)

  def has(self, name: str) -> bool:
    return self._config.get(name) is not None

  def says(self, name: str) -> bool:
    """Whether the file names the field at all, be it as null."""
    return name in self._config

  def refuse(self, what: str):
    raise ValueError(f"{self.path}: {what}.")

  def close(self) -> None:
    """Raises ValueError naming every field that nobody understood."""
    rest = [
        str(n)[:60] for n, x in self._config.items()
        if n not in self._taken | HARMLESS
        and not (x is None or x == {} or x == [] or n in OFF and x is False)
    ]
    if rest:
      self.refuse(
          f"unknown field{'s' * (len(rest) > 1)} {', '.join(sorted(rest)[:20])}"
          " of its config may change the numbers; models that need it are not"
          " supported yet"
      )


def rope(
    fields: Fields, theta: float, scaled: Fields | None, **known
) -> Rope:
  """Rotary settings from rope_scaling (or rope_parameters), read and closed.

  `known` are further fields of `Rope`. Raises ValueError for a kind of
  scaling that is not among plain, linear, llama3, yarn, longrope.
  """
  if scaled is None:
    scaled = Fields(fields.path, {})
  theta = scaled.take("rope_theta", float, theta)
  known["fraction"] = scaled.take(
      "partial_rotary_factor", float, known.get("fraction", 1.0)
  )
  kind = scaled.maybe("type", str) or "default"
  kind = scaled.take("rope_type", str, kind)
  number = lambda name, default=None: scaled.take(name, float, default)
  if kind == "linear":
    known |= dict(scaling="linear", factor=number("factor"))
  elif kind == "llama3":
    known |= dict(
        scaling="llama3", factor=number("factor"),
        low=number("low_freq_factor"), high=number("high_freq_factor"),
        original=scaled.take("original_max_position_embeddings", int),
    )
  elif kind == "yarn":
    for name in ("mscale", "mscale_all_dim"):
      scaled.only(name)
    scaled.only("truncate", True)
    known |= dict(
        scaling="yarn", factor=number("factor"),
        fast=number("beta_fast", 32.0), slow=number("beta_slow", 1.0),
        attention=scaled.maybe("attention_factor", float),
        original=scaled.take(
            "original_max_position_embeddings", int, _longest(fields)
        ),
    )
  elif kind in ("longrope", "su"):
    known |= _long(fields, scaled)
  elif kind != "default":
    scaled.refuse(
        f"rope_type {kind!r} is none of default, linear, llama3, yarn, longrope"
    )
  scaled.close()
  try:
    return Rope(theta=theta, **known)
  except ValueError as error:
    fields.refuse(str(error).rstrip("."))


def _longest(fields) -> int:
  """Positions seen in training, by the fields beside the scaling's own."""
  most = fields.maybe("max_position_embeddings", int)
  return fields.take("original_max_position_embeddings", int, most)


def _long(fields, scaled) -> dict:
  """LongRoPE (arXiv 2402.13753) as far as its short factors reach."""
  original = scaled.take(
      "original_max_position_embeddings", int, _longest(fields)
  )
  longest = fields.take("max_position_embeddings", int, original)
  factor = scaled.take("factor", float, longest / max(original, 1))
  attention = 1.0
  if factor > 1 and original > 1:
    attention = math.sqrt(1 + math.log(factor) / math.log(original))
  scaled.take("long_factor", list, [])
  short = scaled.take("short_factor", list)
  if not all(type(f) in (int, float) and 0 < f < 1e9 for f in short):
    scaled.refuse("short_factor must list positive numbers")
  return dict(
      scaling="longrope", original=original, factors=tuple(map(float, short)),
      attention=scaled.take("attention_factor", float, attention),
  )
