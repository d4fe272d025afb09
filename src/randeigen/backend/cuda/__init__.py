"""Kernels that read rows where they lie on an NVIDIA GPU."""

from randeigen.backend.cuda.old import gram_and_origin_exponent, takes, weighted_sum

__all__ = ["gram_and_origin_exponent", "takes", "weighted_sum"]
