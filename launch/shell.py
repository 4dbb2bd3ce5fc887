"""What the scripts share: flags over config, one-sentence errors, a report."""

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags
from rich import console, progress, table

from specjax.jobs import Stopped
from specjax.processes import leads

screen = console.Console(stderr=True)  # stdout is for text alone


def define(names: dict[str, tuple]) -> None:
  """Defines flags from name -> (default, help); unset ones stay None."""
  kinds = {
      bool: flags.DEFINE_bool,
      int: flags.DEFINE_integer,
      float: flags.DEFINE_float,
      str: flags.DEFINE_string,
      tuple: flags.DEFINE_multi_string,
  }
  for name, (default, text) in names.items():
    if isinstance(default, dict):
      continue  # only a config can say it
    shown = "none" if default in ("", ()) else default
    shown = " ".join(shown) if isinstance(shown, tuple) else shown
    # Named as the script's own flags, so that --help lists them.
    kinds[type(default)](
        name, None, f"{text} [{shown}]", module_name=sys.argv[0]
    )


def settings(
    names: dict[str, tuple], config: ConfigDict, given: dict
) -> ConfigDict:
  """Defaults, the config over them, the flags given over both.

  Raises ValueError for a config's name or type that no flag has.
  """
  c = {name: default for name, (default, _) in names.items()}
  for name, value in config.items():
    if name not in c:
      raise ValueError(
          f"--config: {name!r} is unknown; its names are those of the flags:"
          f" {', '.join(c)}. (A file may hold several configs, such as"
          " file.py:shapes.)"
      )
    kind = type(c[name])
    value = tuple(value) if isinstance(value, list) else value
    value = value.to_dict() if isinstance(value, ConfigDict) else value
    if kind is str and type(value) is int:
      value = str(value)  # what may be a number or a word
    if kind is float and type(value) is int:
      value = float(value)
    if type(value) is not kind:
      right = f"no {kind.__name__}, as {c[name]!r} is"
      if kind is dict:
        right = "not in fields; a config's variant x.py:shapes has them"
      raise ValueError(f"--config: {name} = {value!r} is {right}.")
    c[name] = value
  for name, value in given.items():
    if value is not None:
      c[name] = tuple(value) if isinstance(value, list) else value
  return ConfigDict(c)


def run(
    main: Callable[[ConfigDict], None], names: dict[str, tuple], config=None
) -> None:
  """Runs a script on its settings; `config` is the default file's path.

  What a user can put right ends it in one sentence, with a code of 1 or, when
  it was asked to end, 130; help that was asked for ends it with 0.
  """
  define(names)
  help_ends_well()
  file = config_flags.DEFINE_config_file(
      "config", config, "A Python file with get_config(); flags win over it.",
      lock_config=True,
  )
  flags.declare_key_flag("config")

  def alone(argv):
    if argv[1:]:
      raise ValueError(f"{argv[1]!r} is no flag; see --help.")
    c = settings(names, file.value or ConfigDict(), _given(names))
    if c.get("multihost"):
      join(c.coordinator, c.processes, c.process)
    main(c)

  cache = os.environ.get("SPECJAX_CACHE", "~/.cache/specjax")
  jax.config.update("jax_compilation_cache_dir", os.path.expanduser(cache))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
  logging.set_verbosity(logging.WARNING)
  try:
    _look_for_config(sys.argv[1:])
    app.run(alone)
  except Stopped as ended:
    _leave(str(ended), 130)
  except KeyboardInterrupt:
    _leave("interrupted.", 130)
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    lost(error)
  except BrokenPipeError:  # the reader of our text has left
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except Exception as error:
    if os.environ.get("SPECJAX_DEBUG") or not _mistake(error):
      raise
    _leave(with_flags(str(error), _given(names)), 1)


def join(coordinator: str, processes: int, process: int) -> None:
  """Joins the other processes of --multihost; only the first one's stdout is
  kept. Raises ValueError when they do not find each other."""
  asked = {}
  if coordinator:
    asked = dict(
        coordinator_address=coordinator, num_processes=processes,
        process_id=process,
    )
  try:
    jax.distributed.initialize(**asked)
  except (ValueError, RuntimeError) as error:
    said = " ".join(str(error).split()).rstrip(".")
    raise ValueError(
        f"--multihost: the processes do not find each other ({said}); give each"
        " --coordinator=host:port, --processes and its own --process."
    ) from None
  if not leads():
    sys.stdout = open(os.devnull, "w")


def lost(error: Exception) -> None:
  """Ends this process when another one is gone: nobody waits for it."""
  said = " ".join(str(error).split())[:200]
  say(
      f"another process has ended, or cannot be reached ({said}); start all of"
      " them again, which goes on from what is written."
  )
  os._exit(1)


def help_ends_well() -> None:
  """Help that was asked for ends a script with a code of 0; absl's is 1."""
  app.define_help_flags()
  for name in ("help", "helpshort", "helpfull", "helpxml"):
    flag = flags.FLAGS[name]
    flag.parse = functools.partial(_help, flag.parse)


def _help(parse: Callable, word) -> None:
  try:
    parse(word)
  except SystemExit:
    sys.exit(0)


def _given(names) -> dict:
  """The flags that stand on the command line; the others are None."""
  known = flags.FLAGS
  return {name: known[name].value for name in names if name in known}


def _look_for_config(words: list[str]) -> None:
  """Before absl does, whose sentence about a missing file is no help."""
  for word, after in zip(words, [*words[1:], ""]):
    match = re.fullmatch(r"--?config(?:=(.*))?", word)
    if not match:
      continue
    file = after if match[1] is None else match[1]
    if not os.path.exists(file.partition(":")[0]) or os.path.isdir(file):
      raise ValueError(
          f"--config={file}: there is no such file; give a Python file with"
          " get_config(), such as configs/embedded.py."
      )


def with_flags(sentence: str, given: dict) -> str:
  """Puts before a library's sentence the flags it is about.

  Those are the ones named as its settings ("top_p = 2", "mesh: ..."), or else
  the ones given a path that it speaks of.
  """
  if "--" in sentence:
    return sentence
  found = []
  for said in re.findall(r"\b(\w+) = |^(\w+): ", sentence):
    said = "".join(said)
    near = [n for n in given if n == said + "s" or n.startswith(said + "_")]
    found += [said] if said in given else near
  if not found:
    path = lambda x: isinstance(x, str) and re.search(r"[./]", x)
    found = [n for n, x in given.items() if path(x) and x in sentence]
  flagged = ", ".join(f"--{n}" for n in dict.fromkeys(found))
  return f"{flagged}: {sentence}" if flagged else sentence


def _mistake(error: Exception) -> bool:
  """Whether a user can put it right: our sentences, files, a config's keys."""
  if isinstance(error, (ValueError, OSError)):
    return True
  frame, names = error.__traceback__, set()
  while frame:
    names.add(frame.tb_frame.f_globals.get("__name__", ""))
    frame = frame.tb_next
  return any("config_flags" in name for name in names)


def say(sentence: str) -> None:
  """Prints a sentence of the script's own, beside the text on stdout."""
  sentence = " ".join(sentence.split())  # some libraries' errors have lines
  script = os.path.basename(sys.argv[0])
  print(f"{script}: {sentence}", file=sys.stderr, flush=True)


def interrupted() -> None:
  """Ends the script at once, from any thread: nothing is to be kept."""
  sys.stdout.flush()
  say("interrupted.")
  os._exit(130)


def _leave(sentence: str, code: int) -> None:
  sys.stdout.flush()
  say(sentence)
  sys.exit(code)


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None]]:
  """A `tick(done, total)`: a bar on a terminal, else a line now and then."""
  if not leads():
    yield lambda done, total: None
    return
  if screen.is_terminal:
    columns = (
        progress.TextColumn(label), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=screen) as shown:
      task = shown.add_task(label, total=None)
      yield lambda done, total: shown.update(
          task, completed=done, total=total
      )
    return
  last = [float("-inf")]

  def tick(done, total):
    if done == total or time.monotonic() - last[0] > 10:
      last[0] = time.monotonic()
      print(f"{label}: {done}/{total} lines", file=sys.stderr, flush=True)

  yield tick


def report(title: str, columns: dict[str, dict[str, str]]) -> None:
  """Prints name -> {measure: value} side by side."""
  if not leads():
    return
  out = table.Table(title=title)
  out.add_column("")
  for name in columns:
    out.add_column(name, justify="right")
  measures = dict.fromkeys(m for c in columns.values() for m in c)
  for measure in measures:
    out.add_row(measure, *(c.get(measure, "") for c in columns.values()))
  screen.print(out)
