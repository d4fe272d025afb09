"""Studies behind the documentation: what they measure becomes a record under results/. Not part of the wheel."""
