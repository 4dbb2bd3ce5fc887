"""Llama 3.1 70B Instruct with the 8B of the same family as its drafter.

  python launch/generate.py --config=configs/llama3_70b_8b.py --mesh=1x16 \\
      --chat --prompt='How do bees find their way?'
  python launch/plan.py --config=configs/llama3_70b_8b.py:shapes \\
      --topology=v4:2x2x4 --batch=1 --batch=8 --context=8192 --k=2 --k=4

The model cards are huggingface.co/meta-llama/Llama-3.1-70B-Instruct and
Llama-3.1-8B-Instruct, whose licence must be accepted there first. `shapes` is
what a planner needs of them, which reads no checkpoint.
"""

from ml_collections import ConfigDict

SHARED = dict(
    model_type="llama", vocab_size=128256, head_dim=128, num_key_value_heads=8,
    hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000,
    rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192,
    ),
    tie_word_embeddings=False,
)
SHAPES = dict(
    target=dict(
        **SHARED, hidden_size=8192, num_hidden_layers=80,
        num_attention_heads=64, intermediate_size=28672,
    ),
    drafter_model=dict(
        **SHARED, hidden_size=4096, num_hidden_layers=32,
        num_attention_heads=32, intermediate_size=14336,
    ),
    dtype="bfloat16",
)


def get_config(variant: str = "run") -> ConfigDict:
  if variant == "shapes":
    return ConfigDict(SHAPES)
  return ConfigDict(
      dict(
          target="meta-llama/Llama-3.1-70B-Instruct",
          drafter="autoregressive",
          drafter_model="meta-llama/Llama-3.1-8B-Instruct",
          num_speculative_tokens=4,
          dtype="bfloat16",
          temperature=0.6,
          top_p=0.9,
          max_new_tokens=1024,
      )
  )
