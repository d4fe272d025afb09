"""Arrays, tensors, records and files as blocks of columns, and the answer in the same form."""

from randeigen.rows.convert import as_rows
from randeigen.rows.write import write_answer, write_safetensors

__all__ = ["as_rows", "write_answer", "write_safetensors"]
