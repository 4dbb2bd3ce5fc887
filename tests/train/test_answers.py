import numpy as np
import pytest

from specjax import engine
from specjax.train import answers


def _plan(**changes):
  plan = dict(batches=3, batch=4, prompt=5, new=6)
  return answers.Plan(**plan | changes)


TOKENS = np.random.default_rng(0).integers(1, 32, 200).astype(np.uint16)


def test_answers_continue_the_corpus_and_a_killed_run_goes_on(
    tiny, tmp_path, monkeypatch
):
  whole = answers.collect(tiny.target, TOKENS, _plan(), tmp_path / "a")
  assert whole.shape == (12, 11) and whole.dtype == np.uint16
  text = TOKENS.tobytes()
  assert all(row[:5].tobytes() in text for row in whole)
  greedy = [int(x) for x in whole[0]]  # the first temperature is 0
  assert greedy[5:] == tiny.greedy(greedy[:5], 6)
  real, calls = engine.generate, []

  def killed(*arguments):
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return real(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(engine, "generate", killed)
    with pytest.raises(KeyboardInterrupt):
      answers.collect(tiny.target, TOKENS, _plan(), tmp_path / "b")
  calls.clear()
  with monkeypatch.context() as patch:
    patch.setattr(engine, "generate", lambda *a: calls.append(1) or real(*a))
    again = answers.collect(tiny.target, TOKENS, _plan(), tmp_path / "b")
  assert len(calls) == 2  # the first batch was kept
  np.testing.assert_array_equal(again, whole)


def test_a_key_tells_plans_and_targets_apart(tiny):
  key = lambda target=tiny.target, **c: answers.key(target, TOKENS, _plan(**c))
  assert key() == key()
  assert len({key(), key(seed=1), key(new=7), key(tiny.drafter.model)}) == 4


def test_a_plan_without_sense_is_refused(tiny, tmp_path):
  with pytest.raises(ValueError, match="batch = 0 must be at least 1"):
    _plan(batch=0)
  with pytest.raises(ValueError, match="200 tokens hold no prompt of 300"):
    answers.collect(tiny.target, TOKENS, _plan(prompt=300), tmp_path)
