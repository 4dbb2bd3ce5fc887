"""A conversation in the terminal, each answer written sooner.

  python launch/chat.py --target=DIR --system='Answer in one line.'
  printf 'Hello.\\nAnd you?\\n' | python launch/chat.py --target=DIR

A line is a turn; /help lists what else may be said. What the model has read
is kept between turns, so only new text is read. ctrl-C stops an answer and,
at the prompt, the script; ctrl-D ends it.
"""

import contextlib
import os
import pathlib
import signal
import sys

import generate
import jax
import shell
import words

from specjax import chat, metrics, requests, states, stream
from specjax.types import BUDGET, END, REASONS, RUNNING

SHARED = (
    "num_speculative_tokens", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_new_tokens",
)
FLAGS = words.FLAGS | {name: generate.FLAGS[name] for name in SHARED} | dict(
    system=("", "What the model is told first."),
    max_tokens=(2048, "Room for the conversation, in tokens."),
    stats=(False, "Show speed and acceptance after each answer."),
)
HELP = """/undo   take the last turn back
/drop   leave out the oldest turn, which makes room
/reset  begin anew
/quit   end (also ctrl-D)"""


class Conversation:
  """Messages, and a state that has read them as far as they are unchanged.

  `messages` is the truth: a turn encodes all of it and reads only what lies
  past the tokens that the state has in common with it.
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
          self._m.target, self._m.drafter, self._state, rule=self._m.rule
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


@contextlib.contextmanager
def stoppable():
  """Turns ctrl-C into a question; the second one interrupts."""
  asked = []

  def ask(number, frame):
    asked.append(number)
    signal.signal(signal.SIGINT, old)

  old = signal.signal(signal.SIGINT, ask)
  try:
    yield lambda: bool(asked)
  finally:
    signal.signal(signal.SIGINT, old)


def main(c):
  options = generate_options(c)
  with jax.set_mesh(words.mesh(c.mesh)):
    talk = Conversation(
        words.models(c), system=c.system, new=c.max_new_tokens,
        room=c.max_tokens, seed=c.seed, sampling=options.sampling,
    )
    if talk.plain:
      shell.say("the target has no chat template, so it goes on from the text.")
    for line in lines():
      if line.startswith("/"):
        if not command(talk, line):
          return
      elif line.strip():
        try:
          answer(c, talk, line)
        except ValueError as error:
          shell.say(str(error))


def generate_options(c) -> requests.Options:
  """Checks what the flags say about the text, before a model is loaded."""
  if not 2 <= c.max_tokens <= 2**24:
    raise ValueError(f"--max_tokens={c.max_tokens}: it must lie in 2..2^24.")
  return requests.Options(
      max_new_tokens=c.max_new_tokens, seed=c.seed,
      sampling=dict(
          temperature=c.temperature, top_k=c.top_k, top_p=c.top_p,
          min_p=c.min_p, repetition=c.repetition_penalty,
          presence=c.presence_penalty, frequency=c.frequency_penalty,
      ),
  )


def lines():
  """The user's turns: from a terminal with a prompt, else line by line."""
  if not sys.stdin.isatty():
    for line in sys.stdin:
      yield line.removesuffix("\n")
    return
  with contextlib.suppress(ImportError):
    import readline  # noqa: F401, gives input() a history
  with contextlib.suppress(EOFError):
    while True:
      yield input("> ")


def command(talk: Conversation, line: str) -> bool:
  """Does what a line such as /reset says; False if it ends the script."""
  word = line.strip()
  if word == "/quit":
    return False
  known = {"/undo": talk.undo, "/drop": talk.drop, "/reset": talk.reset}
  if word in known:
    known[word]()
    shell.say(f"the conversation has {len(talk)} messages.")
  elif word == "/help":
    print(HELP, file=sys.stderr)
  else:
    shell.say(f"{word} is no command; /help lists them, a space before it"
              " makes it text.")
  return True


def answer(c, talk: Conversation, line: str) -> None:
  """Shows one answer as it is written, and how it ended if not by itself."""
  pace, event = metrics.Pace(), None
  with stoppable() as stopped:
    for new, event in talk.say(line, stopped):
      pace.saw(len(event.tokens[0]))
      print(new, end="", flush=True)
    print(flush=True)
  finish = event.finish[0]
  if finish == RUNNING:
    shell.say("stopped.")
  elif finish == BUDGET:
    shell.say("the answer ends for want of room: --max_new_tokens or"
              " --max_tokens.")
  elif finish != END:
    shell.say(f"the answer ends: {REASONS[finish]}.")
  if c.stats:
    figures = metrics.summary(event.tally)
    shell.say(
        f"{pace.rate:.1f} tokens/s after the first, which took"
        f" {pace.wait:.2f} s; {figures['acceptance_length']:.2f} tokens a"
        f" target pass; {figures['emitted']} tokens written, {talk.kept} not"
        " read again."
    )


if __name__ == "__main__":
  file = pathlib.Path(__file__).parent / "../configs/embedded.py"
  shell.run(main, FLAGS, str(file))
