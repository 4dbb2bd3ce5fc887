"""Checkpoints of the Hugging Face hub, or of its cache on this machine."""

import pathlib
import re

import huggingface_hub
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from specjax.checkpoint.source import said

# What is read, all in the top folder; pickled weights are not even fetched.
WANTED = ["*.json", "*.safetensors", "*.model", "*.jinja"]
WORD = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]{1,96})?")
REASONS = {
    LocalEntryNotFoundError: "the hub cannot be reached",
    RepositoryNotFoundError: "the hub has no such model, or wants a login",
    RevisionNotFoundError: "the model has no such revision",
    HFValidationError: "that is no valid id",
}


def folder(word: str) -> pathlib.Path:
  """The local folder of "org/name" or "org/name@revision".

  Fetched once, then found in the cache, also without a network and with
  HF_HUB_OFFLINE=1. Raises ValueError when it is neither there nor to be had.
  """
  name, _, revision = word.partition("@")
  try:
    found = huggingface_hub.snapshot_download(
        name, revision=revision or None, allow_patterns=WANTED,
        ignore_patterns=["*/*", "consolidated*"],
    )
  except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
    # Of the classes of one failure the nearest says most.
    known = [REASONS[k] for k in type(error).__mro__ if k in REASONS]
    reason = known[0] if known else said(error)
    raise ValueError(
        f"{word}: neither in the hub's cache on this machine nor to be fetched"
        f" ({reason})."
    ) from None
  return pathlib.Path(found)
