"""Turns a checkpoint into an Orbax one for any mesh, or into safetensors.

  python launch/convert.py --source=DIR --out=DIR2
  python launch/convert.py --source=DIR2 --out=DIR3 --format=safetensors

--source: a folder in the Hugging Face layout, a hub id (org/name), a .gguf
file, smollm2, gemma3-270m, or what this script wrote. Tokenizer and
config.json go along. Values keep their bits while --dtype is that of the
source.
"""

import pathlib
import shutil

import jax
import shell
import words

from specjax import pretrained
from specjax.checkpoint import orbax, published

WRITERS = {"orbax": orbax.save, "safetensors": published.save}
FLAGS = dict(
    source=("", "What to read."),
    out=("", "A new folder."),
    format=("orbax", "orbax, or safetensors in the published layout."),
    dtype=("auto", "float32, bfloat16, or auto: as it is stored."),
    mesh=words.FLAGS["mesh"],
)


def main(c):
  if not c.source or not c.out:
    raise ValueError("give --source and --out.")
  if c.dtype not in ("auto", "float32", "bfloat16"):
    raise ValueError(f"--dtype={c.dtype}: choose auto, float32 or bfloat16.")
  write = words.look("format", c.format, WRITERS)
  out = pathlib.Path(c.out)
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(f"--out={out}: it is there already and not empty.")
  if out.resolve().is_relative_to(pathlib.Path(c.source).resolve()):
    raise ValueError(f"--out={out}: it lies inside --source; choose another.")
  part = out.with_name(f".{out.name}.part")  # until all is written
  shutil.rmtree(part, ignore_errors=True)
  with jax.set_mesh(words.mesh(c.mesh)):
    found = words.find("source", c.source)
    dtype = found.dtype if c.dtype == "auto" else c.dtype
    model = found.load("float32" if dtype == "float16" else dtype)
    write(model, found.config, part, dtype)
  try:
    pretrained.copy_text(found, part)
  except ValueError as error:
    shell.say(f"without a tokenizer: {error}")
  part.replace(out)
  print(f"{out}: {c.format}, {dtype}.")


if __name__ == "__main__":
  shell.run(main, FLAGS)
