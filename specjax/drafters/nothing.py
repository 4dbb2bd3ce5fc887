"""The baseline is a drafter that proposes nothing."""

import jax.numpy as jnp
from flax import nnx

from specjax.types import Commit, Draft, State


class Nothing(nnx.Module):
  """The same engine without drafts; its window is one or two rows wide.

  Two rows can be the faster pass: a one-row bfloat16 product took six to nine
  times as long as a two-row one on a CPU (our measurement).
  """

  taps = ()
  vocab = None

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
