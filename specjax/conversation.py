"""A conversation with a chat model that reads only what is new in a turn."""

import os

from specjax import chat, states, stream
from specjax.types import RUNNING


class Conversation:
  """Messages, and a state that has read them as far as they are unchanged.

  `messages` is the truth: a turn encodes all of it and reads only what lies
  past the tokens that the state has in common with it. `m` has a target, a
  drafter, a rule and the target's tokenizer.
  """

  def __init__(
      self, m, *, system: str, new: int, room: int, seed: int, sampling: dict
  ):
    if getattr(m.target, "opening", None) is not None:
      raise ValueError(
          "--target: it reads a prompt by an encoder, which keeps nothing"
          " between turns; use launch/generate.py."
      )
    lengths = [x.max_length for x in (m.target, m.drafter)]
    self._m, self._new = m, new
    self._room = min([room, *(n for n in lengths if n is not None)])
    self._seed, self._sampling = seed, sampling
    self._first = [dict(role="system", content=system)] if system else []
    self.plain = m.tokenizer.chat_template is None
    self._eos = m.tokenizer.eos if self.plain else chat.ends(m.tokenizer)
    self._state, self.turns, self.kept = None, 0, 0
    self.reset()

  def reset(self) -> None:
    self.messages = list(self._first)

  def undo(self) -> None:
    """Takes the last turn back, the question and its answer."""
    self.messages = self.messages[: max(len(self._first), len(self) - 2)]

  def drop(self) -> None:
    """Leaves the oldest turn out, not what the model was told first."""
    begin = len(self._first)
    self.messages = self._first + self.messages[begin + 2 :]

  def __len__(self) -> int:
    return len(self.messages)

  def say(self, text: str, stopped=lambda: False):
    """Yields (new text, Event) of the answer until it ends or is stopped.

    What was written stays in the conversation. Raises ValueError, which
    leaves it as it was: too long a conversation, a template that refuses.
    """
    asked = [*self.messages, dict(role="user", content=text)]
    self._read(self._encoded(asked))
    self.turns += 1
    reader, answer = self._m.tokenizer.stream(), ""
    try:
      for event in stream.stream(
          self._m.target, self._m.drafter, self._state, rule=self._m.rule,
          run=getattr(self._m, "run", None),
      ):
        self._state = event.state
        new = reader.push(event.tokens[0])
        if event.finish[0] != RUNNING:
          new += reader.flush()
        answer += new
        yield new, event
        if stopped():
          break
    finally:
      self.messages = [*asked, dict(role="assistant", content=answer)]

  def _encoded(self, messages: list[dict]) -> list[int]:
    """The tokens to go on from; without a template, the text alone."""
    tokenizer = self._m.tokenizer
    if not self.plain:
      return chat.encode(tokenizer, messages)
    begin = [] if tokenizer.bos is None else [tokenizer.bos]
    text = "".join(
        m["content"] + "\n" * (m["role"] != "assistant") for m in messages
    )
    return begin + tokenizer.encode(text)

  def _read(self, ids: list[int]) -> None:
    """Brings the state to the end of `ids`, ready to answer."""
    if len(ids) >= self._room:
      raise ValueError(
          f"the conversation has {len(ids)} tokens, and there is room for"
          f" {self._room} with an answer; /drop leaves its oldest turn out,"
          " /reset begins anew, --max_tokens makes room where the model can."
      )
    pair = self._m.target, self._m.drafter
    options = dict(
        max_new_tokens=min(self._new, self._room - len(ids)),
        sampling=self._sampling, seed=self._seed + self.turns, eos=self._eos,
    )
    if self._state is None:
      self.kept = 0
      reach = max(self._m.drafter.K + 1, *states.CHUNKS)
      self._state = states.prefill(
          *pair, [ids], capacity=states.bucket(self._room, reach), **options
      )
      return
    old = states.texts_of(self._state)[0]
    same = len(os.path.commonprefix([old, ids[:-1]]))
    # At least one token is kept, for `rewind`, and one read, for `resume`.
    state, self._state = self._state, None  # donated
    if not same:
      self.kept = 0
      self._state = states.refill(*pair, state, [ids], **options)
      return
    self.kept = same
    if same < len(old):
      state = states.rewind(*pair, state, [same])
    self._state = states.resume(*pair, state, [ids[same:]], **options)
