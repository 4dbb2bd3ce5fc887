"""Chinchilla 70B with a wide and shallow 4B drafter: Chen et al., 2023.

  python launch/plan.py --config=configs/chinchilla_70b_4b.py \\
      --topology=v4:2x2x4 --batch=1 --batch=8 --batch=64 --context=2048 \\
      --k=2 --k=4 --k=8 --k=15 --acceptance=0.7

Shapes for the planner; there is no checkpoint. The paper (arXiv 2302.01318)
gives width, heads and layers, with heads of 128: 8192, 64, 80 and 6144, 48, 8,
on 16 TPU v4. The rest is told in Llama's words: with 32,000 tokens, a gated
MLP of 3 widths makes 70.3 billion parameters and one of 8/3 widths 4.0
billion, so that what is read and multiplied is as much as theirs.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  shared = dict(
      model_type="llama", vocab_size=32000, head_dim=128, hidden_act="silu",
      rms_norm_eps=1e-6, tie_word_embeddings=False,
  )
  return ConfigDict(
      dict(
          topology="v4:2x2x4",
          target=dict(
              **shared, hidden_size=8192, num_hidden_layers=80,
              num_attention_heads=64, intermediate_size=24576,
          ),
          drafter_model=dict(
              **shared, hidden_size=6144, num_hidden_layers=8,
              num_attention_heads=48, intermediate_size=16384,
          ),
          dtype="bfloat16",
          published=dict(
              source="Chen et al., 2023 (arXiv 2302.01318), table 1",
              k=4,
              plain_ms=14.1,
              draft_ms=1.8,
              token_ms={
                  "XSum, nucleus": 7.52,
                  "XSum, greedy": 7.00,
                  "HumanEval": 5.73,
              },
          ),
          remarks=(
              "The measured models have another MLP and other positions than"
              " these shapes, ran on the software of their year, and the"
              " length of their texts is not told.",
              "Tokens a round are inferred from what was measured, where a"
              " round is a pass and K draft steps: speed-ups beside each other"
              " compare times, not acceptance.",
          ),
      )
  )
