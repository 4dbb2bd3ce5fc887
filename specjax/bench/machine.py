"""What numbers were measured with: machine, versions, settings."""

import datetime
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax

import specjax


def about(command: str, settings: dict) -> dict:
  """The first line of a results file; `settings` say what was asked for."""
  return dict(
      kind="about", command=command, date=str(datetime.date.today()),
      cpu=processor(), cores=os.cpu_count(),
      device=jax.devices()[0].device_kind, devices=jax.device_count(),
      python=platform.python_version(), jax=jax.__version__,
      specjax=specjax.__version__, **settings,
  )


def processor() -> str:
  """Its name as the system tells it."""
  info = pathlib.Path("/proc/cpuinfo")
  if info.is_file():
    for line in info.read_text().splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  return platform.processor() or platform.machine()


def timed(call: Callable) -> tuple[float, Any]:
  """(seconds, result) of a call, finished and not merely sent off."""
  start = time.perf_counter()
  result = jax.block_until_ready(call())
  return time.perf_counter() - start, result
