"""The door in and out: arrays, tensors, records and files as strips of columns, and back again."""

from randeigen.rows.convert import as_rows
from randeigen.rows.write import write_answer, write_safetensors

__all__ = ["as_rows", "write_answer", "write_safetensors"]
