"""Stand-ins small enough that every continuation can be listed.

A decoder of five tokens, a drafter that knows only the last token, a byte
tokenizer: what a test of an engine, a drafter or a server needs, in
milliseconds and without files.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import encoder_decoder as encoders
from specjax.models.decoder import Config, Decoder
from specjax.sampling import draw, log_probs
from specjax.tokens import Increment
from specjax.types import Commit, Draft, State


def decoder(
    vocab: int = 5, *, seed: int = 0, layers: int = 1, boost: float = 6.0,
    **fields,
) -> Decoder:
  """A random float32 decoder whose next token hangs on all the text.

  `boost` scales what the branches add to the stream: at 1, as initialised,
  the last token decides nearly alone and a spoilt cache would hardly show.
  `fields` are further ones of `decoder.Config`.
  """
  shape = dict(width=16, heads=2, kv_heads=1, dim=8, mlp=16)
  config = Config(vocab=vocab, layers=layers, **(shape | fields))
  model = Decoder(config, rngs=nnx.Rngs(seed))
  for block in model.blocks:
    for weight in (block.attention.o, block.mlp.down):
      weight[...] = weight[...] * boost
  return model


def encoder_decoder(
    vocab: int = 5, *, seed: int = 0, layers: int = 1, boost: float = 6.0,
    **fields,
) -> encoders.EncoderDecoder:
  """Likewise one that reads its prompt with an encoder of as many layers."""
  shape = dict(
      width=16, heads=2, dim=8, mlp=16, encoder_layers=layers, layers=layers,
      buckets=8, max_distance=16,
  )
  config = encoders.Config(vocab=vocab, **(shape | fields))
  model = encoders.EncoderDecoder(config, rngs=nnx.Rngs(seed))
  for stack in (model.encoder, model.decoder):
    stack.relative.table[...] = stack.relative.table[...] * boost
    for block in stack.blocks:
      for part in (block.attention, block.cross):
        if part is not None:
          part.q[...] = part.q[...] * boost
          part.o[...] = part.o[...] * boost
      block.mlp.down[...] = block.mlp.down[...] * boost
  return model


class Table(nnx.Module):
  """A target without memory: logits [V V] of the next token by the last.

  The smallest target there is; it compiles in a fraction of a decoder's time.
  """

  def __init__(self, vocab: int = 5, *, seed: int = 0):
    self.vocab, self.max_length, self.opening = vocab, None, None
    table = jax.random.normal(jax.random.key(seed), (vocab, vocab))
    self.table = nnx.Param(table)

  def start(self, source, length, capacity: int):
    return (), source[:, :1]

  def embed(self, tokens):
    return jax.nn.one_hot(tokens, self.vocab)

  def __call__(self, tokens, start, cache=None, taps=()):
    hidden = self.embed(tokens)
    return hidden, hidden[..., :0], cache

  def norm(self, hidden):
    return hidden

  def head(self, normed):
    return jnp.einsum("btu,uv->btv", normed, self.table[...])


class Bigram(nnx.Module):
  """Drafts K tokens by a table of logits [V V]: the last token decides.

  The smallest sampled drafter, and a place to plant bugs: `law` gives what
  is recorded and `pick` what is drawn from it.
  """

  taps = ()

  def __init__(self, vocab: int, K: int, *, seed: int = 1):
    self.vocab, self.K, self.max_length = vocab, K, None
    table = jax.random.normal(jax.random.key(seed), (vocab, vocab))
    self.table = nnx.Param(table)

  def init(self, target, source, capacity: int):
    return ()

  def ingest(self, target, dstate, commit: Commit):
    return ()

  def propose(self, target, state: State, keys):
    rows = state.rows
    first = jax.vmap(lambda t, n: t[n - 1])(rows.tokens, rows.length)

    def one(token, i):
      logp = self.law(self.table[...][token], rows, i)
      token = self.pick(jax.vmap(jax.random.fold_in, (0, None))(keys, i), logp)
      return token, (token, logp)

    tokens, logp = jax.lax.scan(one, first, jnp.arange(self.K))[1]
    count = jnp.full_like(rows.length, self.K)
    rows_first = lambda x: jnp.swapaxes(x, 0, 1)
    return Draft(rows_first(tokens), rows_first(logp), count), state

  def law(self, logits, rows, i):
    """log q [B V] of draft i; committed text decides about penalties."""
    return log_probs(logits[:, None], rows, i[None])[:, 0]

  def pick(self, keys, logp):
    return draw(keys, logp)


class Bytes:
  """A tokenizer whose ids are the bytes of UTF-8; 256 begins, 257 ends.

  Has the methods of `specjax.text.Tokenizer` and needs no file.
  """

  bos, eos, size = 256, (257,), 258

  def encode(self, text: str, *, special: bool = False) -> list[int]:
    return list(text.encode("utf-8"))

  def decode(self, ids: Iterable[int], *, start: bool = True) -> str:
    stream = self.stream(start=start)
    return stream.push(ids) + stream.flush()

  def stream(self, *, start: bool = False) -> Increment:
    return Increment(self.token_bytes(), False)

  def token_bytes(self) -> list[bytes]:
    return [bytes([i]) for i in range(256)] + [b"", b""]
