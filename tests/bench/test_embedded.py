"""What a report prints of the embedded pair, asserted."""

import pathlib

import jax
import pytest

from specjax import embedded, engine, metrics, rules
from specjax.bench.prompts import read
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.states import prefill

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS, NEW = 8, 96


class Liar(Autoregressive):
  """Tells a flatter law than that which its tokens are drawn from."""

  def propose(self, target, state, keys):
    draft, state = super().propose(target, state, keys)
    flat = jax.nn.log_softmax(draft.logits / 2, -1)
    return draft._replace(logits=flat), state


@pytest.fixture(scope="module")
def counted():
  words, target = embedded.tokenizer(), embedded.model("target")
  small = embedded.model("drafter")
  texts = [
      [words.bos, *words.encode(p.text)][:24]
      for p in read(ROOT / "configs/prompts/heldout.jsonl", limit=ROWS)
  ]
  made = {
      "autoregressive": Autoregressive(small, 4), "ngram": NGram(4, 1),
      "liar": Liar(small, 4),
  }

  def run(name):
    state = prefill(
        target, made[name], texts, max_new_tokens=NEW, chunks=(64,),
        sampling=dict(temperature=1.0),
    )
    _, tally = engine.generate(target, made[name], state, rule=rules.token)
    return tally

  return run


@pytest.mark.parametrize("name", ["autoregressive", "ngram"])
def test_drafts_pass_as_often_as_their_laws_overlap(counted, name):
  total = metrics.pool(metrics.counts(counted(name)))
  difference, width = metrics.gap(total)
  assert sum(total["reached"]) > 100
  assert abs(difference) <= width < 0.12


def test_planted_a_drafter_that_tells_another_law_is_found_out(counted):
  total = metrics.pool(metrics.counts(counted("liar")))
  difference, width = metrics.gap(total)
  assert abs(difference) > width
