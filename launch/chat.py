"""A conversation in the terminal, each answer written sooner.

  python launch/chat.py --config=configs/smollm2.py
  python launch/chat.py --target=DIR --drafter=ngram --system='Be brief.'
  printf 'Hello.\\n' | python launch/chat.py --target=DIR --drafter=ngram

A line is a turn; /help lists what else may be said. What the model has read
is kept between turns, so only new text is read. ctrl-C stops an answer and,
at the prompt, the script; ctrl-D ends it.
"""

import contextlib
import pathlib
import signal
import sys

import generate
import jax
import shell
import words

from specjax import metrics, requests
from specjax.conversation import Conversation
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
  with jax.set_mesh(words.mesh(c.mesh, c.drafter_shards)):
    talk = Conversation(
        words.models(c), system=c.system, new=c.max_new_tokens,
        room=c.max_tokens, seed=c.seed, sampling=options.sampling,
    )
    if talk.plain:
      shell.say("the target has no chat template, so it goes on from the text.")
    print(generate.COMPILING, file=sys.stderr)  # as the first turn is read
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
      sampling=words.sampling(c),
  )


def lines():
  """The user's turns: from a terminal with a prompt, else line by line."""
  if sys.stdin is None:  # closed
    return
  if not sys.stdin.isatty():
    for raw in sys.stdin.buffer:
      yield raw.decode("utf-8", "replace").rstrip("\r\n")
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
