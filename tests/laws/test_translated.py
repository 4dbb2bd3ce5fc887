"""Drafts from another vocabulary: the law, the memory, two planted bugs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import rules, testing
from specjax.drafters import autoregressive
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.translated import Translated
from specjax.sampling import draw
from specjax.testing import state
from specjax.vocabularies import Tables

pytestmark = pytest.mark.usefixtures("quick_compiles")

# a, ab, ca, c, q, end for end, c, b, a, zz, bb, k: three of six are shared,
# two are read as two pieces, one as nothing.
V, D, K = 6, 7, 2
TABLES = Tables(*(
    np.array(x, np.int32) for x in (
        [3, 7, 7, 1, 7, 0],
        [0, 1, 3, 5, 6, 6],
        [1, 2, 2, 1, 0, 1],
        [3, 3, 2, 1, 3, 1, 0],
    )
))
SHARED = TABLES.shared < D
PROMPTS = [[0, 1, 2, 3, 5, 4], [1, 2, 3], [4, 0, 1, 2, 3, 5, 2, 2], [2]]


def pair():
  model = Translated(testing.decoder(D, seed=1), TABLES)
  return testing.decoder(V), Autoregressive(model, K)


@pytest.mark.parametrize(
    "rule", ["token", pytest.param("block", marks=pytest.mark.slow)]
)
def test_next_four_tokens_have_the_law_of_the_target(rule):
  testing.check_law(
      *pair(), PROMPTS, rule=getattr(rules, rule), rows=32_768
  )


def test_drafts_pass_as_often_as_the_overlap_says():
  sums = testing.check_acceptance(*pair(), PROMPTS)
  assert 0 < sums["passed"] < sums["reached"]


@pytest.fixture
def own_slots(monkeypatch):
  """The kit looks at the slots that the model's own tokens have filled."""

  sound = state._memory

  def memory(target, drafter, s):
    for which, kept, axes, bound in sound(target, drafter, s):
      if which == 0:
        yield which, kept, axes, bound
        continue
      none = jax.tree.map(lambda _: -1, axes)
      at = s.last.start[:, None]
      own = jnp.take_along_axis(kept.before, at, 1)[:, 0]
      yield which, kept, axes._replace(before=-1), own
      yield which, kept, none._replace(before=axes.before), s.last.start + 1

  monkeypatch.setattr(state, "_memory", memory)


def test_memory_equals_a_fresh_prefill_after_every_round(own_slots):
  seen = testing.check_state(*pair(), PROMPTS)
  assert seen == set(range(K + 1))


def test_rubbish_above_the_final_slots_is_never_seen(own_slots):
  testing.check_poison(*pair(), PROMPTS)


def test_no_window_is_written_past_the_last_slot(own_slots):
  testing.check_capacity(*pair())


def test_a_row_does_not_hang_on_its_neighbours():
  testing.check_batch_invariance(*pair(), PROMPTS)


def test_stops_cut_and_change_nothing_before():
  testing.check_stops(*pair(), PROMPTS)


def law(kind=Autoregressive, model=Translated):
  """All bugs meet this check; models without memory compile soonest."""
  drafter = kind(model(testing.Table(D, seed=1), TABLES), K)
  testing.check_law(
      testing.Table(V), drafter, [[0, 1, 2, 3, 5]], [dict()], rows=16_384
  )


def test_sound_pair_has_the_law():
  law()


class Unrestricted(Translated):
  """Gives the other tokens their part of the law too."""

  def head(self, normed):
    return jnp.where(SHARED, super().head(normed), 0.0)


def test_recording_the_unrestricted_law_fails_check_law(monkeypatch):
  law(model=Unrestricted)  # exact as long as it is the law that is drawn from
  class Recorded(Unrestricted):
    pass

  monkeypatch.setattr(
      autoregressive, "draw",
      lambda keys, logp: draw(keys, jnp.where(SHARED, logp, -jnp.inf)),
  )
  with pytest.raises(AssertionError, match="law"):
    law(model=Recorded)


class OtherIds(Autoregressive):
  """Draws right and records the law of two shared tokens exchanged."""

  def propose(self, target, state, keys):
    draft, state = super().propose(target, state, keys)
    swapped = draft.logits[..., jnp.array([3, 1, 2, 0, 4, 5])]
    return draft._replace(logits=swapped), state


def test_wrong_ids_in_the_recorded_law_fail_check_law():
  with pytest.raises(AssertionError, match="law"):
    law(OtherIds)
