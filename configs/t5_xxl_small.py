"""T5 v1.1 XXL (11 B) with a smaller T5 as drafter: Leviathan et al., 2023.

  python launch/generate.py --config=configs/t5_xxl_small.py:ende_small_0 \\
      --input=in.jsonl --output=out.jsonl --batch=1
  python launch/generate.py --config=configs/t5_xxl_small.py:cnndm_base_1 ...

The variant is task, drafter, temperature; each has the paper's number of
drafts (arXiv 2211.17192, table 2): 7 for translation and 5 for summaries with
the small one, greedily. The paper tuned its models on the tasks first: give
such checkpoints by --target and --drafter_model, and prompts as they were
tuned on. Weights must be safetensors: a hub id may need a revision that has
them (org/name@revision). In bfloat16 the target has 22 GB, which fits one TPU
v4 as in the paper; on a mesh its model axis must divide the drafter's heads
too (6 and 12 of small and base).
"""

from ml_collections import ConfigDict

# Parameters of the drafters: 77 M, 250 M, 800 M.
DRAFTS = {
    "ende_small_0": 7,
    "ende_base_0": 7,
    "ende_large_0": 7,
    "ende_small_1": 7,
    "ende_base_1": 5,
    "ende_large_1": 3,
    "cnndm_small_0": 5,
    "cnndm_base_0": 5,
    "cnndm_large_0": 3,
    "cnndm_small_1": 5,
    "cnndm_base_1": 3,
    "cnndm_large_1": 3,
}


def get_config(variant: str = "ende_small_0") -> ConfigDict:
  if variant not in DRAFTS:
    raise ValueError(
        f"--config: variant {variant!r} is none of {', '.join(DRAFTS)}."
    )
  _, size, temperature = variant.split("_")
  return ConfigDict(
      dict(
          target="google/t5-v1_1-xxl",
          drafter="autoregressive",
          drafter_model=f"google/t5-v1_1-{size}",
          num_speculative_tokens=DRAFTS[variant],
          dtype="bfloat16",
          temperature=float(temperature),
          max_new_tokens=128,
          truncate=True,
      )
  )
