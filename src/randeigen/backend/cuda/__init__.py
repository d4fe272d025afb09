"""Kernels that read rows where they lie on an NVIDIA GPU."""

from randeigen.backend.cuda.old import scaled_gram, takes, weighted_sum

__all__ = ["scaled_gram", "takes", "weighted_sum"]
