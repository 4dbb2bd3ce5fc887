"""Disk: safetensors in, safetensors out; Orbax for training states."""
