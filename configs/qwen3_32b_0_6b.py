"""Qwen3-32B with Qwen3-0.6B as its drafter, which shares its tokens.

  python launch/generate.py --config=configs/qwen3_32b_0_6b.py --mesh=1x8 \\
      --chat --prompt='How do bees find their way?'
  python launch/plan.py --config=configs/qwen3_32b_0_6b.py:shapes \\
      --topology=v5p:2x2x2 --batch=1 --batch=16 --context=4096 --k=2 --k=4

The model cards are huggingface.co/Qwen/Qwen3-32B and Qwen3-0.6B (Apache-2.0),
with their advice for thinking mode: temperature 0.6, top-p 0.95, top-k 20.
`shapes` is what a planner needs of them, which reads no checkpoint.
"""

from ml_collections import ConfigDict

SHARED = dict(
    model_type="qwen3", vocab_size=151936, head_dim=128, num_key_value_heads=8,
    hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000,
)
SHAPES = dict(
    target=dict(
        **SHARED, hidden_size=5120, num_hidden_layers=64,
        num_attention_heads=64, intermediate_size=25600,
        tie_word_embeddings=False,
    ),
    drafter_model=dict(
        **SHARED, hidden_size=1024, num_hidden_layers=28,
        num_attention_heads=16, intermediate_size=3072,
        tie_word_embeddings=True,
    ),
    dtype="bfloat16",
)


def get_config(variant: str = "run") -> ConfigDict:
  if variant == "shapes":
    return ConfigDict(SHAPES)
  return ConfigDict(
      dict(
          target="Qwen/Qwen3-32B",
          drafter="autoregressive",
          drafter_model="Qwen/Qwen3-0.6B",
          num_speculative_tokens=4,
          dtype="bfloat16",
          temperature=0.6,
          top_p=0.95,
          top_k=20,
          max_new_tokens=2048,
      )
  )
