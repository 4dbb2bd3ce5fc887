"""The baseline is a drafter that proposes nothing."""

import jax.numpy as jnp
from flax import nnx

from specjax.types import Commit, Draft, State


class Nothing(nnx.Module):
  """The same engine without drafts; its window is one or two rows wide.

  Two rows can be the faster pass where a backend has no good product of one
  row; `launch/bench.py` measures both and takes the faster.
  """

  taps = ()
  vocab = max_length = None

  def __init__(self, window: int = 1):
    if window not in (1, 2):
      raise ValueError(f"nothing: window = {window} must be 1 or 2.")
    self.K = window - 1

  def init(self, target, source, capacity: int):
    return ()

  def ingest(self, target, dstate, commit: Commit):
    return ()

  def propose(self, target, state: State, keys):
    zero = jnp.zeros_like(state.rows.length)
    tokens = jnp.broadcast_to(zero[:, None], (zero.shape[0], self.K))
    return Draft(tokens, None, zero), state
