"""numpy, torch, the cores and the GPU: only this room knows which library holds the numbers."""
