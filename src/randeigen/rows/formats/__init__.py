"""File formats: what each declares of its arrays, and how their numbers are read."""
