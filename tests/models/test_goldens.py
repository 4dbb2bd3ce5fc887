"""Every family against its reference implementation, number by number.

Folders with a checkpoint in its published layout and the reference's arrays:
those of tests/goldens (made by its make.py), and any others in
../shared/goldens or $SPECJAX_GOLDENS.
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from specjax import engine, states
from specjax.checkpoint import published
from specjax.checkpoint.folder import Folder
from specjax.drafters.autoregressive import Autoregressive
from specjax.models import families
from specjax.models.decoder import Decoder
from specjax.models.parts import NORMED
from specjax.train.losses import logits, next_token

HERE = pathlib.Path(__file__).resolve().parents[1]
PLACES = [HERE / "goldens", HERE.parents[1] / "shared" / "goldens"]
MORE = os.environ.get("SPECJAX_GOLDENS")
PLACES += map(pathlib.Path, MORE.split(os.pathsep) if MORE else [])
LOGITS, STATES = 1e-4, 2e-5  # absolute; relative to the largest entry

pytestmark = pytest.mark.usefixtures("quick_compiles")


def folders():
  for place in PLACES:
    for config in sorted(place.glob("*/config.json")):
      kind = json.loads(config.read_text()).get("model_type")
      family = families.FAMILIES.get(kind)
      io = config.with_name("io.safetensors")
      if family is None or family.build is not Decoder or not io.is_file():
        continue
      with safe_open(io, framework="np") as file:
        if "full.logits" in file.keys():
          yield pytest.param(
              config.parent, id=f"{place.parent.name}-{config.parent.name}"
          )


def test_every_family_has_its_golden():
  found = {
      json.loads(config.read_text())["model_type"]
      for config in (HERE / "goldens").glob("*/config.json")
  }
  assert found == set(families.FAMILIES)


class Golden:
  def __init__(self, folder):
    source = Folder(folder)
    self.model, self.config = published.load(source), source.config
    with safe_open(folder / "io.safetensors", framework="np") as file:
      self.io = {n: file.get_tensor(n) for n in file.keys()}


@pytest.fixture(scope="module", params=folders())
def golden(request):
  jax.clear_caches()
  return Golden(request.param)


@jax.jit
def passes(model, ids, prompt, keep, other):
  """A pass without a cache; then prompt, 1, 5 tokens, and a rolled-back 3."""
  B, N = ids.shape
  T = prompt.shape[1]
  taps = (*range(len(model.blocks) + 1), NORMED)
  at = lambda n: jnp.full(B, n, jnp.int32)
  head = lambda hidden: model.head(model.norm(hidden))
  hidden, features, _ = model(ids, at(0), None, taps)
  out = dict(full=head(hidden), features=features)
  cache, _ = model.start(ids, at(N), 64)
  _, _, cache = model(prompt, at(0), cache)
  out["prefill"] = cache
  hidden, _, cache = model(ids[:, T : T + 1], at(T), cache)
  out["step1"] = head(hidden)
  hidden, _, cache = model(ids[:, T + 1 : T + 6], at(T + 1), cache)
  out["step5"] = head(hidden)
  hidden, _, cache = model(other, at(keep), cache)
  return out | dict(rollback=head(hidden), after=cache)


@pytest.fixture(scope="module")
def computed(golden):
  io = golden.io
  T = int(io["prefill.length"])
  ids = io["full.ids"]
  return jax.device_get(passes(
      golden.model, ids, ids[:, :T], int(io["rollback.keep"]),
      io["rollback.ids"],
  ))


def close(ours, theirs, relative=None):
  tolerance = LOGITS if relative is None else relative * abs(theirs).max()
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_logits(golden, computed):
  close(computed["full"], golden.io["full.logits"])


def test_states_of_each_layer(golden, computed):
  c, io = golden.model.c, golden.io
  taps = np.split(computed["features"], c.layers + 2, -1)
  for i in range(c.layers):
    close(taps[i], io[f"full.hidden_states.{i}"], STATES)
  close(taps[c.layers], io["full.last_layer_out"], STATES)
  close(taps[-1], io[f"full.hidden_states.{c.layers}"], STATES)


def test_cached_steps(golden, computed):
  io, T = golden.io, int(golden.io["prefill.length"])
  for i, kv in enumerate(computed["prefill"]):
    close(kv.k[:, :, :T], io[f"prefill.k.{i}"], STATES)
    close(kv.v[:, :, :T], io[f"prefill.v.{i}"], STATES)
  for name in ("step1", "step5", "rollback"):
    close(computed[name], io[f"{name}.logits"])


def test_the_cache_after_a_rollback(golden, computed):
  io, last = golden.io, computed["after"][-1]
  keep = int(io["rollback.keep"]) + io["rollback.ids"].shape[1]
  if "rollback.k_last_layer" not in io:
    pytest.skip("the folder has no cache of it")
  for name, ours in zip("kv", last):
    theirs = io[f"rollback.{name}_last_layer"]
    close(ours[:, :, :keep], theirs[:, :, :keep], STATES)


def test_greedy_text(golden):
  model, io = golden.model, golden.io
  text, begin = io["greedy.tokens"], int(io["greedy.prompt_length"])
  assert io["greedy.margin"].min() > 10 * LOGITS  # else rounding may decide
  found = np.asarray(jax.jit(logits)(model, text))[0].argmax(-1)
  assert found[begin - 1 : -1].tolist() == text[0, begin:].tolist()


@pytest.mark.slow
def test_greedy_text_with_drafts(golden):
  model, io = golden.model, golden.io
  text, begin = io["greedy.tokens"][0].tolist(), int(io["greedy.prompt_length"])
  drafter = Autoregressive(model, 3)
  state = states.prefill(
      model, drafter, [text[:begin]], max_new_tokens=len(text) - begin,
      sampling=dict(temperature=0.0), chunks=(8,),
  )
  state, _ = engine.generate(model, drafter, state)
  assert states.texts_of(state) == [text]


def test_the_loss_and_its_gradient(golden):
  io = golden.io
  if "ce.loss" not in io:
    pytest.skip("the folder has no loss")

  loss = jax.jit(jax.value_and_grad(next_token))
  value, grads = loss(golden.model, io["full.ids"])
  np.testing.assert_allclose(value, io["ce.loss"], rtol=1e-5)
  ours = dict(published.tensors(grads, golden.config))
  theirs = {
      n.removeprefix("ce.grad_norm.").removeprefix("transformer."): x
      for n, x in io.items() if n.startswith("ce.grad_norm.")
  }
  shared = sorted(set(theirs) & set(ours))  # stacked experts have other names
  assert len(shared) > 3
  for name in shared:
    np.testing.assert_allclose(
        np.linalg.norm(ours[name]), theirs[name], rtol=1e-3, err_msg=name
    )
