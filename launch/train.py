"""Trains a target, then a drafter that imitates it, and exports both.

  python launch/train.py --config=configs/tiny.py --workdir=runs/tiny

The drafter learns from the corpus first, then from the target's own answers.
The same command goes on after any interruption. `--workdir` gets
`target.safetensors`, `drafter.safetensors` and the numbers in `result.json`.
"""

import dataclasses
import json
import os
import pathlib
import sys

import jax
import shell
import words
from absl import app, flags, logging
from flax import nnx
from ml_collections import config_flags

from specjax import processes
from specjax.checkpoint import safetensors
from specjax.models.decoder import Config, Decoder
from specjax.train import answers, corpus, loop, losses

_CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the run is kept.")
_MESH = flags.DEFINE_string(
    "mesh", "1x1", "Data x model shards, or data x fsdp x model. [1x1]"
)
flags.mark_flags_as_required(["config", "workdir"])
shell.define(words.PODS)


def main(argv):
  del argv
  if flags.FLAGS.multihost:
    shell.join(*(flags.FLAGS[n].value for n in list(words.PODS)[1:]))
  with jax.set_mesh(words.mesh(_MESH.value, fsdp=True)):
    stages()


def stages():
  c, work = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  work.mkdir(parents=True, exist_ok=True)
  plan = answers.Plan(**c.drafter.answers.to_dict(), seed=c.seed)
  recipe = lambda wish, seed: loop.Recipe(**wish.to_dict(), seed=seed)
  tuning = recipe(c.drafter.tuned, c.seed + 2)
  if plan.prompt + plan.new != tuning.length + 1:
    raise ValueError(
        f"drafter.answers: prompt + new = {plan.prompt + plan.new} tokens; it"
        f" must be one more than drafter.tuned.length = {tuning.length}."
    )
  train, heldout = corpora(work)

  def stage(name, recipe, model, loss, tokens, *others):
    return loop.run(
        model, loss, recipe, tokens, heldout, work / name, others, name
    )

  def fresh(wish, seed):
    return Decoder(Config(**wish.to_dict()), rngs=nnx.Rngs(seed))

  target = stage(
      "target", recipe(c.target.recipe, c.seed),
      fresh(c.target.model, c.seed), losses.next_token, train
  )
  safetensors.save(target, work / "target.safetensors")
  drafter = stage(
      "drafter", recipe(c.drafter.recipe, c.seed + 1),
      fresh(c.drafter.model, c.seed + 1), losses.distill, train, target,
  )
  folder = work / f"answers-{answers.key(target, train, plan)}"
  own = answers.collect(target, train, plan, folder)
  drafter = stage(
      f"tuned-{answers.key(drafter, own, tuning)}", tuning, drafter,
      losses.distill, own, target,
  )
  safetensors.save(drafter, work / "drafter.safetensors")
  r = dataclasses.replace(tuning, eval_batches=c.final_batches)
  score = lambda f, *m: loop.evaluate(m[0], f, r, heldout, m[1:])
  result = {
      "target_heldout_loss": score(losses.next_token, target),
      "drafter_heldout_loss": score(losses.next_token, drafter),
      **score(losses.overlap, drafter, target),
  }
  if processes.leads():
    (work / "result.json").write_text(json.dumps(result, indent=2) + "\n")
  logging.info("%s", result)


def corpora(work):
  """The tokens of the splits; the first process makes their files."""
  if processes.leads():
    for split in corpus.SPLITS:
      corpus.cached(split, work)
  processes.agreed(0)  # the others wait here
  return [corpus.cached(split, work) for split in corpus.SPLITS]


if __name__ == "__main__":
  logging.set_verbosity(logging.INFO)
  quiet = lambda record: "orbax" not in record.pathname  # 20 lines a save
  logging.get_absl_logger().addFilter(quiet)
  cache = os.environ.get("SPECJAX_CACHE", "~/.cache/specjax")
  jax.config.update("jax_compilation_cache_dir", os.path.expanduser(cache))
  shell.help_ends_well()
  try:
    app.run(main)
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    shell.lost(error)
  except (loop.Stopped, FloatingPointError, ValueError) as ended:
    sys.exit(str(ended))
