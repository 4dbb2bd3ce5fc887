"""The rules by enumeration in float64, for families of (p, q)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import rules
from specjax.testing import Case, cases, check_rule, enumerate_rule, tree

RULES = {"token": rules.token, "block": rules.block}
both = pytest.mark.parametrize("rule", RULES)
V, K = 3, 2  # of generated cases: one shape, one compiled program


@both
def test_every_corner_is_exact(rule):
  check_rule(RULES[rule])


@st.composite
def generated(draw):
  """Trees of small whole weights: many zeros, ties and equal laws."""
  weight = st.integers(0, 3) | st.sampled_from([0, 1, 10**6])

  def law(shape):
    size = shape[0] * shape[1]
    flat = draw(st.lists(weight, min_size=size, max_size=size))
    x = np.array(flat, float).reshape(shape)
    return np.where(x.sum(-1, keepdims=True) > 0, x, 1)

  p = tree(V, K + 1, law)
  q = p[:K] if draw(st.booleans()) else tree(V, K, law)
  counts = draw(st.lists(st.integers(0, K), min_size=V, max_size=V))
  # Known before the second draw, as the first draft is.
  known = lambda path: max(counts[path[0]], 1) if counts[0] else counts[1]
  return Case("generated", p, q, known)


@both
@settings(deadline=None, max_examples=60, derandomize=True)
@given(case=generated())
def test_generated_families_are_exact(rule, case):
  check_rule(RULES[rule], [case])


def iid(p, q, drafts):
  fixed = lambda law: lambda shape: np.broadcast_to(law, shape)
  p, q = np.array(p), np.array(q)
  return Case(
      "iid", tree(len(p), drafts + 1, fixed(p)), tree(len(p), drafts, fixed(q))
  )


@pytest.mark.parametrize(
    "rule, accepted", [("token", 10 / 9), ("block", 11 / 9)]
)
def test_published_check_values(rule, accepted):
  case = iid([1 / 3, 2 / 3], [2 / 3, 1 / 3], 2)
  assert abs(enumerate_rule(RULES[rule], case).accepted - accepted) < 1e-12


@pytest.mark.parametrize("vocab, drafts", [(2, 3), (3, 2), (4, 2)])
def test_block_accepts_no_less_than_token(vocab, drafts):
  for case in cases(vocab, drafts, seed=1):
    token, block = (enumerate_rule(r, case).accepted for r in RULES.values())
    assert block >= token - 1e-12, case.name


def test_token_accepts_draft_i_as_often_as_the_laws_overlap():
  for case in cases(V, K, seed=2):
    out = enumerate_rule(rules.token, case)
    shared = np.minimum(case.p[0], case.q[0]).sum()
    if case.count is None or case.count((1,) * K):
      assert abs(out.passed[0] - shared) < 1e-12, case.name
    # Draft 1 is judged after the kept first drafts min(p, q) / sum of it.
    if case.count is None:
      kept = np.minimum(case.p[0], case.q[0])[0]
      overlap = np.minimum(case.p[1], case.q[1]).sum(-1)
      assert abs(out.passed[1] - kept @ overlap) < 1e-12, case.name


def test_no_drafts_means_the_target_alone():
  for case in cases(4, 0):
    for rule in RULES.values():
      out = enumerate_rule(rule, case)
      assert out.accepted == 0 and np.array_equal(out.law, out.target)


def test_a_rule_without_terms_is_refused():
  with pytest.raises(ValueError, match="terms"):
    enumerate_rule(lambda *_: None, iid([1.0], [1.0], 1))
