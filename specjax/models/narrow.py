"""A drafter's model cut over fewer chips than the target, or over none.

A small model cut sixteen ways waits for its all-reduces; one that every chip
holds has none (Chen et al., 2023, made theirs wide and shallow for that).
"""

from flax import nnx

from specjax.sharding import laid, narrowed


class Narrow(nnx.Module):
  """`model`, built within `sharding.narrowed()`, for a mesh with `narrow`.

  As the model itself in all but layout: its logits leave it laid out like the
  target's.
  """

  def __init__(self, model: nnx.Module):
    self.model = model

  @property
  def vocab(self) -> int:
    return self.model.vocab

  @property
  def max_length(self) -> int | None:
    return self.model.max_length

  @property
  def opening(self) -> int | None:
    return self.model.opening

  def start(self, source, length, capacity: int):
    with narrowed():
      return self.model.start(source, length, capacity)

  def embed(self, tokens):
    with narrowed():
      return self.model.embed(tokens)

  def norm(self, hidden):
    with narrowed():
      return self.model.norm(hidden)

  def head(self, normed):
    with narrowed():
      logits = self.model.head(normed)
    return laid(logits, "batch", None, "vocab")

  def __call__(self, tokens, start, cache=None, taps=()):
    with narrowed():
      return self.model(tokens, start, cache, taps)
