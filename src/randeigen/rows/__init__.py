"""The door in and out: arrays, tensors, records and files as strips of columns, and back again."""

from randeigen.rows.door import as_rows
from randeigen.rows.save import write_answer, write_safetensors

__all__ = ["as_rows", "write_answer", "write_safetensors"]
