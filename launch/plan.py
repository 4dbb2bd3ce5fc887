"""What a pair of models would do on TPUs that are not here: memory and time.

  pip install '.[plan]'
  python launch/plan.py --config=configs/chinchilla_70b_4b.py \\
      --topology=v4:2x2x4 --batch=1,8,64 --k=2,4,8 --context=2048 --out=plans/x

Compiles the engine's own programs for that slice, with libtpu and no TPU, in
some minutes, and tells what a chip holds, what chips send each other, the least
time a token takes for each K, the K to choose, and the batch at which drafts
stop paying. Of other configs than Chinchilla's the shapes are a part:
--config=configs/qwen3_8b_0_6b.py:shapes.
Tables go to stdout; --out becomes a folder of README.md, plan.json, plan.png.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import sys

# Before jax is imported: nothing here is to run on, or wait for, a TPU.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "true"

import jax  # noqa: E402
import shell  # noqa: E402
from rich import console, table  # noqa: E402

from specjax.bench import machine  # noqa: E402
from specjax.plan import chips, planner, report, shapes  # noqa: E402

FLAGS = dict(
    topology=("v4:2x2x4", "Generation and sides: v4, v5e, v5p or v6e."),
    batch=(("1",), "Rows side by side, such as 1,8,64."),
    context=(2048, "Slots a row: its text, and a window after it."),
    k=(("4",), "Drafts a round, such as 2,4,8."),
    acceptance=(0.7, "The chance that a draft passes when all before it did."),
    mesh=("", "Data x model parts; by default all chips share each model."),
    drafter_shards=(
        0, "Model parts of the drafter: 1 repeats it on every chip, 0 is as"
        " many as the target's.",
    ),
    what_if=("", "A slice too large to compile for, as --topology; by formula"),
    dtype=("bfloat16", "float32 or bfloat16."),
    out=("", "A folder for README.md, plan.json and plan.png."),
    # Only a config says these.
    target=({}, "The target's shape, as fields of a published config.json."),
    drafter_model=({}, "The drafter's, likewise."),
    published=({}, "What others measured, to stand beside the plan."),
    remarks=((), "Sentences for the page."),
)


def main(c):
  # A program that cannot run here must not be looked for among those that do.
  jax.config.update("jax_enable_compilation_cache", False)
  asked = read(c)
  shell.say(
      "compiling a dozen programs, some minutes; that libtpu finds no TPU,"
      " which it says at length, is as it should be."
  )
  with shell.bar("plan") as tick:
    numbers = planner.foresee(asked, tick)
  command = " ".join(["python", *map(shlex.quote, sys.argv)])
  config = re.search(r"--config[= ](\S+?)\.py", command)
  numbers |= dict(
      name=pathlib.Path(config[1]).name if config else "a pair",
      dtype=c.dtype, command=command, published=c.published.to_dict(),
      remarks=list(c.remarks), about=machine.about(
          command, dict(libtpu=importlib.metadata.version("libtpu"))
      ),
  )
  show(numbers)
  if c.out:
    write(pathlib.Path(c.out), numbers)


def read(c) -> planner.Asked:
  """The settings, checked as far as they are words."""
  place = chips.slice_of(c.topology)
  parts = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", c.mesh or "1x1")
  data = int(parts[1]) if parts else 0
  if not parts or c.mesh and data * int(parts[2]) != place.chips:
    raise ValueError(
        f"--mesh={c.mesh}: give data x model parts that make up the"
        f" {place.chips} chips of {place.word}, such as 1x{place.chips}."
    )
  return planner.Asked(
      place, *(
          shapes.decoder(name, c[name].to_dict(), c.dtype)
          for name in ("target", "drafter_model")
      ),
      numbers("batch", c.batch), c.context, numbers("k", c.k), c.acceptance,
      data, c.drafter_shards,
      chips.slice_of(c.what_if, "what_if") if c.what_if else None,
  )


def numbers(flag: str, words) -> tuple[int, ...]:
  """Whole numbers, ascending, each once; a word may list several."""
  words = ",".join(words).split(",")
  for word in words:
    if not re.fullmatch(r"\d{1,6}", word):
      raise ValueError(f"--{flag}={word}: give a whole number.")
  return tuple(sorted({int(word) for word in words}))


def show(n: dict) -> None:
  """The plan on stdout."""
  wide = console.Console()
  out = wide if wide.is_terminal else console.Console(width=110)
  out.print(report.title(n), style="bold")
  for found in report.tables(n):
    shown = table.Table(title=found.title, title_justify="left")
    for i, column in enumerate(found.columns):
      shown.add_column(column, justify="right" if i else "left")
    for row in found.rows:
      shown.add_row(*row)
    out.print(shown)
  for sentence in (*report.sentences(n), *report.LEFT_OUT):
    out.print(f"* {sentence}", highlight=False)


def write(folder: pathlib.Path, n: dict) -> None:
  from specjax.bench import plots
  from specjax.plan import picture

  folder.mkdir(parents=True, exist_ok=True)
  (folder / "plan.json").write_text(json.dumps(n, indent=1) + "\n")
  (folder / "plan.png").write_bytes(plots.png(picture.draw(n)))
  (folder / "README.md").write_text(report.page(n))
  print(f"{folder}/README.md has the plan.", file=sys.stderr)


if __name__ == "__main__":
  shell.run(main, FLAGS)
