"""An 8 M target and a 0.9 M drafter that speak Python, trained on a laptop.

  python launch/train.py --config=configs/tiny.py --workdir=runs/tiny

The text is the running interpreter's standard library (`specjax.train.corpus`,
7.8 M training tokens). The target learns it by next-token loss, the drafter
the target's law by distillation, on the corpus and then on the target's own
answers. Muon (Jordan, 2024) for the blocks' matrices, Adam for the rest,
warm-up + stable + decay (Hu et al., 2024). Two free CPU cores take some 40
minutes for the target, 35 for the drafter, 10 for the answers and 6 for those.
Every value can be changed: --config.target.recipe.steps=10.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  shared = dict(vocab=4096, dim=64, norm="rms", qk_norm=True)
  return ConfigDict(
      dict(
          seed=0,
          target=dict(
              model=dict(
                  **shared, width=256, layers=7, heads=4, kv_heads=4, mlp=768
              ),
              recipe=dict(
                  steps=1000,
                  batch=8,
                  length=256,
                  matrix_rate=0.02,
                  other_rate=0.003,
                  warmup=20,
                  decay=400,
                  save_every=50,
                  eval_every=100,
                  eval_batches=8,
              ),
          ),
          drafter=dict(
              model=dict(
                  **shared,
                  width=128,
                  layers=2,
                  heads=2,
                  kv_heads=2,
                  mlp=384,
                  tied=True,
              ),
              recipe=dict(
                  steps=1000,
                  batch=16,
                  length=256,
                  matrix_rate=0.02,
                  other_rate=0.003,
                  warmup=20,
                  decay=400,
                  save_every=50,
                  eval_every=100,
                  eval_batches=4,
              ),
              answers=dict(batches=40, batch=64, prompt=57, new=200),
              tuned=dict(  # on the answers, about a pass
                  steps=160,
                  batch=16,
                  length=256,
                  matrix_rate=0.01,
                  other_rate=0.0015,
                  warmup=10,
                  decay=120,
                  save_every=50,
                  eval_every=40,
                  eval_batches=4,
              ),
          ),
          final_batches=16,  # of the numbers in result.json
      )
  )
