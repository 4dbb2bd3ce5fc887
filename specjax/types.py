"""The vocabulary: every pytree that crosses a room's border.

Legend: B rows, L token slots, S cache slots, K drafts a round (static),
W window width, V vocabulary, F feature width, H kv heads, D head dim,
E end tokens, N most likely tokens kept, or slots of a source.
*anchor* = last committed token, whose keys are not yet written.
p = target law, q = the law a draft was really drawn from, both after the
sampling transforms. Greedy is a mask where temperature == 0.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key

RUNNING, END, STOP, BUDGET, NONFINITE, UNUSED = range(6)
REASONS = ("running", "end", "stop", "budget", "non-finite", "unused")


class KV(NamedTuple):
  """One layer's keys and values, head-major; slot = position."""

  k: Float[Array, "B H S D"]
  v: Float[Array, "B H S D"]


class Draft(NamedTuple):
  """A proposal. `logits` = log q of the law each token was DRAWN from."""

  tokens: Int[Array, "B K"]
  logits: Float[Array, "B K V"] | None  # None = a point mass
  count: Int[Array, "B"]  # how many are real, 0..K; slots above are ignored


class Commit(NamedTuple):
  """A window of tokens that were committed, as a drafter ingests them.

  `features[:, i]` PREDICTED `tokens[:, i]` (zero at position 0); the first
  `count` are real and stand at positions start .. start + count. A drafter
  without taps may be behind by more than W: `engine.catch_up`.
  """

  tokens: Int[Array, "B W"]
  features: Float[Array, "B W F"]
  count: Int[Array, "B"]
  start: Int[Array, "B"]


class Source(NamedTuple):
  """What a text is begun from: an encoder's input, else the text itself."""

  tokens: Int[Array, "B N"]
  length: Int[Array, "B"]


class Sampling(NamedTuple):
  """Per-row sampling parameters; `specjax.sampling` has order and meaning."""

  temperature: Float[Array, "B"]
  top_k: Int[Array, "B"]  # 0 = off
  top_p: Float[Array, "B"]
  min_p: Float[Array, "B"]
  repetition: Float[Array, "B"]
  presence: Float[Array, "B"]
  frequency: Float[Array, "B"]
  min_new: Int[Array, "B"]
  bias: Float[Array, "B V"] | None  # -inf bans a token


class Stop(NamedTuple):
  """Stop strings as a byte automaton lifted to tokens (`stops.stop_table`)."""

  state: Int[Array, "B"]
  mask: Int[Array, "B"]  # bit i: string i stops this row
  next: Int[Array, "Q V"]
  hit: Int[Array, "Q V"]  # bit i: string i completes inside this token


class Logprobs(NamedTuple):
  """Log-probs of emitted tokens by slot; zeros over the prompt."""

  sampled: Float[Array, "B L"]  # under the sampling law
  raw: Float[Array, "B L"]  # under the unmodified model
  top: Float[Array, "B L N"]  # the N likeliest of the unmodified model
  top_tokens: Int[Array, "B L N"]


class Rows(NamedTuple):
  """All that is known of a row; small, the only part a drafter must see."""

  tokens: Int[Array, "B L"]
  length: Int[Array, "B"]  # the only truth about a row
  prompt: Int[Array, "B"]  # where this turn's output begins
  limit: Int[Array, "B"]  # length that may not be passed
  finish: Int[Array, "B"]  # a code of REASONS; UNUSED fills up a mesh
  key: Key[Array, "B"]
  sampling: Sampling
  width: Int[Array, "B"]  # this row's K, 0..K
  eos: Int[Array, "B E"]  # -1 pads
  stop: Stop | None
  counts: Int[Array, "B 2 V"] | None  # prompt, output; only with penalties
  logprobs: Logprobs | None
  source: Source | None = None  # where an encoder reads it apart from `tokens`


class State(NamedTuple):
  """Everything the loop carries, nothing else.

  Target keys are final in slots < length - 1, drafter keys in slots
  < last.start; what lies above nobody sees.
  """

  rows: Rows
  cache: Any
  draft: Any
  last: Commit


class Scores(NamedTuple):
  """What one target pass says of a window; row i judges draft i."""

  logp: Float[Array, "B W V"]  # the sampling law, float32
  raw: Float[Array, "B W V"]  # logits of the unmodified model, float32
  features: Float[Array, "B W F"]
  finite: Bool[Array, "B W"]


class Info(NamedTuple):
  """What one round did; not carried. Counts are zero for frozen rows."""

  rounds: Int[Array, "B"]
  drafted: Int[Array, "B"]
  accepted: Int[Array, "B"]  # before stops cut the block
  emitted: Int[Array, "B"]  # after
  bonus: Int[Array, "B"]
  dropped: Int[Array, "B"]  # by stops and budgets
  reached: Int[Array, "B K"]  # judged at this position
  passed: Int[Array, "B K"]
  overlap: Float[Array, "B K"]  # sum_v min(p, q) where reached


class Tally(NamedTuple):
  """Sums of `Info` over rounds, by row; `specjax.metrics` reads it."""

  info: Info
  steps: Int[Array, ""]  # target passes of the whole batch
