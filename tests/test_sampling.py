"""log_probs against sorts in float64, refusals, draws, extreme numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specjax import sampling
from specjax.types import Rows

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = settings(max_examples=60, deadline=None, database=None)
B, T, V = 3, 3, 11
EOS = (2, 5)
CHOICES = dict(
    temperature=[0.0, 1e-4, 0.7, 1.0, 2.5],
    top_k=[0, 1, 2, 4, V, 99],
    top_p=[0.0371, 0.413, 0.737, 0.9173, 1.0],
    min_p=[0.0, 0.0517, 0.3319, 1.0],
    repetition=[1.0, 0.5, 2.0],
    presence=[0.0, 0.25, -0.5],
    frequency=[0.0, 0.5],
    min_new=[0, 3, 4],
)


def near(a, b):
  return np.any(np.abs(a - b) < 1e-5 * np.maximum(np.abs(b), 1e-3))


def reference(logits, s, prompt, output, allowed, bias):
  """One position, float64, by sorting; assumes no threshold is a near-tie."""
  x = logits.astype(np.float64) + bias
  if len(output) < s["min_new"]:
    x[list(EOS)] = -np.inf
  x[~allowed] = -np.inf
  for token in {*prompt, *output}:
    x[token] *= s["repetition"] if x[token] < 0 else 1 / s["repetition"]
  for token in set(output):
    x[token] -= s["frequency"] * output.count(token) + s["presence"]
  out = np.full(V, -np.inf)
  if s["temperature"] == 0:
    out[np.argmax(x)] = 0.0
    return out
  p = np.exp((x - x.max()) / s["temperature"])
  keep = p > 0
  if 0 < s["top_k"] < V:
    keep &= p >= np.sort(p)[-s["top_k"]]
  if s["top_p"] < 1:
    kept = np.where(keep, p, 0)
    mass = np.cumsum(np.sort(kept)[::-1]) / kept.sum()
    assume(not near(mass, s["top_p"]))
    keep &= p >= np.sort(kept)[::-1][np.argmax(mass >= s["top_p"])]
  if s["min_p"] < 1:
    assume(not near(p / p.max(), s["min_p"]))
  keep &= p >= s["min_p"] * p.max()
  out[keep] = np.log(p[keep] / p[keep].sum())
  return out


def rows(s, texts, young=0):
  """Rows whose prompts and outputs are texts[i] = (prompt, output)."""
  n = len(texts)
  count = lambda ids: np.bincount(np.array(ids, int), minlength=V)
  counts = np.array([[count(a), count(b)] for a, b in texts], np.int32)
  prompt = np.array([len(a) for a, _ in texts], np.int32)
  new = np.array([len(b) for _, b in texts], np.int32)
  blank = dict.fromkeys(Rows._fields)
  eos = np.broadcast_to(np.array(EOS, np.int32), (n, 2))
  return Rows(
      **blank | dict(
          sampling=s, eos=eos, prompt=prompt, length=prompt + new,
          counts=counts,
      )
  )


@jax.jit
def laws(logits, rows, drafted, allowed):
  return sampling.log_probs(logits, rows, jnp.arange(T), drafted, allowed)


class Case:
  """A batch drawn from a seed: settings, texts, drafts, logits with ties."""

  def __init__(self, seed, choices):
    rng = np.random.default_rng(seed)
    ids = lambda most: rng.integers(0, V, rng.integers(0, most + 1)).tolist()
    self.settings = choices
    self.texts = [(ids(4), ids(4)) for _ in range(B)]
    self.drafts = rng.integers(0, V, (B, T - 1))
    self.logits = (rng.integers(-8, 9, (B, T, V)) / 2).astype(np.float32)
    self.allowed = rng.random((B, T, V)) < 0.8
    self.allowed[..., 7] = True
    self.bias = rng.integers(-2, 3, (B, V)).astype(np.float32)
    self.bias[:, :2] = -np.inf

  def run(self):
    values = {k: [s[k] for s in self.settings] for k in CHOICES}
    s = sampling.params(B, **values)._replace(bias=self.bias)
    hot = np.eye(V, dtype=np.int32)[self.drafts]
    drafted = np.pad(np.cumsum(hot, 1), ((0, 0), (1, 0), (0, 0)))
    return np.asarray(
        laws(self.logits, rows(s, self.texts), drafted, self.allowed)
    )


choice = st.fixed_dictionaries(
    {k: st.sampled_from(v) for k, v in CHOICES.items()}
)
batch = st.tuples(*[choice] * B)


@quick
@given(st.integers(0, 2**32), batch)
def test_laws_are_those_of_the_sorting_reference(seed, choices):
  case = Case(seed, choices)
  got = case.run()
  for b in range(B):
    prompt, output = case.texts[b]
    for t in range(T):
      want = reference(
          case.logits[b, t], choices[b], prompt,
          output + case.drafts[b, :t].tolist(), case.allowed[b, t],
          case.bias[b],
      )
      np.testing.assert_array_equal(got[b, t] > -np.inf, want > -np.inf)
      np.testing.assert_allclose(got[b, t], want, rtol=1e-4, atol=1e-4)


@quick
@given(st.integers(0, 2**32), batch, batch)
def test_rows_do_not_touch_each_other(seed, choices, others):
  one = Case(seed, choices).run()
  other = Case(seed, (choices[0], *others[1:])).run()
  np.testing.assert_array_equal(one[0], other[0])


def plain(logits, **values):
  """Laws [B V] of logits [B V] without any text."""
  logits = jnp.asarray(logits, jnp.float32)
  s = sampling.params(len(logits), **values)
  state = rows(s, [([], [])] * len(logits))._replace(counts=None)
  return np.asarray(sampling.log_probs(logits[:, None], state, 0)[:, 0])


def test_a_row_that_asks_nothing_keeps_its_far_tail():
  got = plain([[0.0, -150.0], [0.0, -150.0]], top_k=[0, 1])
  np.testing.assert_array_equal(got, [[0.0, -150.0], [0.0, -np.inf]])


@quick
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 2**16))
def test_bisection_finds_the_sorted_threshold_exactly(seed, k, share):
  """Multiples of 2^-16, so that sums are exact whatever their order."""
  rng = np.random.default_rng(seed)
  p = rng.multinomial(2**16, rng.dirichlet(np.full(40, 0.2))) / 2**16
  order = np.sort(p)[::-1]
  enough = np.array([k, share / 2**16], np.float32)
  weigh = lambda kept: jnp.stack([kept[0] > 0, kept[1]])
  both = np.stack([p, p])[:, None].astype(np.float32)
  got = np.asarray(keep(both, enough, weigh))[:, 0]
  top_k = order[k - 1]
  top_p = order[np.argmax(np.cumsum(order) >= share / 2**16)]
  np.testing.assert_array_equal(got[0], np.where(p >= top_k, p, 0))
  np.testing.assert_array_equal(got[1], np.where(p >= top_p, p, 0))


@jax.jit
def _keep_both(p, enough):
  weigh = lambda kept: jnp.stack([(kept[0] > 0).astype(kept.dtype), kept[1]])
  return sampling._keep(p, enough, weigh)


def keep(p, enough, _):
  return _keep_both(p, enough)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 1e30])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e30, 3e38])
def test_extreme_numbers_stay_laws(temperature, size):
  logits = size * np.array([[-1.0, 0.5, 1.0, 0.9, -np.inf]])
  got = plain(logits, temperature=temperature, top_p=0.99, min_p=1e-30)[0]
  assert not np.isnan(got).any() and got.max() <= 0
  assert np.isclose(np.exp(got.astype(np.float64)).sum(), 1, atol=1e-5)
  assert got[4] == -np.inf, "what the model excludes stays excluded"


def test_bfloat16_logits_become_float32_laws():
  s = sampling.params(1)
  state = rows(s, [([], [])])._replace(counts=None)
  logits = jnp.zeros((1, 1, V), jnp.bfloat16)
  assert sampling.log_probs(logits, state, 0).dtype == jnp.float32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("values", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_nan_logit_leaves_no_finite_law(temperature, values):
  logits = [[0.0, np.nan, 1.0], [0.0, 3.0, 1.0]]
  got = plain(logits, temperature=temperature, **values)
  assert not np.isfinite(got[0].max())
  assert np.isfinite(got[1].max())


def test_greedy_takes_the_first_of_equals():
  got = plain([[1.0, 2.0, 2.0]], temperature=0.0)
  np.testing.assert_array_equal(got, [[-np.inf, 0.0, -np.inf]])


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("temperature", -1.0, "temperature = -1 in row 0"),
        ("temperature", [1.0, 1e-5], "temperature = 1e-05 in row 1"),
        ("temperature", float("nan"), "temperature = nan"),
        ("temperature", float("inf"), "temperature = inf"),
        ("temperature", 1e300, "temperature"),
        ("temperature", True, "temperature = True is not a number"),
        ("temperature", "hot", "temperature = 'hot' is not a number"),
        ("temperature", None, "temperature = None is not a number"),
        ("temperature", [1, [2]], "temperature"),
        ("temperature", [1, 1, 1], "shape .3,.*each of the 2 rows"),
        ("temperature", [[1, 1]], "shape"),
        ("top_k", -1, "top_k = -1 in row 0.*whole number"),
        ("top_k", 1.5, "top_k = 1.5"),
        ("top_k", 2**31, "top_k"),
        ("top_p", [0.5, 0.0], "top_p = 0 in row 1"),
        ("top_p", 1e-45, "top_p"),  # float32 flushes it to zero
        ("top_p", 1.01, "top_p"),
        ("min_p", -0.1, "min_p"),
        ("min_p", 1.1, "min_p"),
        ("repetition", 0.0, "repetition"),
        ("repetition", 1e-46, "repetition"),
        ("presence", float("nan"), "presence"),
        ("frequency", 1e39, "frequency"),
        ("min_new", -1, "min_new"),
        ("top_n", 1, "'top_n' is unknown"),
        ("bias", {V: 1.0}, f"token {V} in row 0"),
        ("bias", {1: float("nan")}, "bias nan of token 1 in row 0"),
        ("bias", {1: float("inf")}, "bias inf"),
        ("bias", [{}], "each of the 2 rows"),
        ("banned", [-1], "token -1 in row 0"),
        ("banned", [[1], [V]], "row 1"),
        ("banned", range(V), "row 0 bans every token"),
    ],
)
def test_params_refuse(name, value, text):
  with pytest.raises(ValueError, match=text):
    sampling.params(2, vocab=V, **{name: value})


def test_bias_needs_the_vocabulary():
  with pytest.raises(ValueError, match="vocabulary"):
    sampling.params(1, bias={0: 1.0})


def test_bias_and_bans_add_up_per_row():
  s = sampling.params(
      2, vocab=3, bias=[{0: 1.5}, None], banned=[[2], [0, 1]]
  )
  want = [[1.5, 0, -np.inf], [-np.inf, -np.inf, 0]]
  np.testing.assert_array_equal(s.bias, want)


def test_penalised_tells_whether_counts_are_needed():
  assert not sampling.penalised(sampling.params(2, top_k=3))
  for name in ("repetition", "presence", "frequency"):
    assert sampling.penalised(sampling.params(2, **{name: [1.0, 0.5]}))


def test_draws_follow_the_law_and_never_the_impossible():
  n = 20_000
  p = np.array([0.5, 0.0, 0.3, 0.2])
  with np.errstate(divide="ignore"):
    logp = jnp.log(jnp.asarray(np.broadcast_to(p, (n, 4)), jnp.float32))
  keys = jax.random.split(jax.random.key(0), n)
  drawn = np.asarray(sampling.draw(keys, logp))
  count = np.bincount(drawn, minlength=4)
  assert count[1] == 0
  assert np.all(np.abs(count - n * p) < 6 * np.sqrt(n * p * (1 - p)) + 1e-9)


def test_equal_keys_draw_equal_tokens():
  keys = jnp.repeat(jax.random.split(jax.random.key(1), 1), 5)
  assert len(set(sampling.draw(keys, jnp.zeros((5, 99))).tolist())) == 1
