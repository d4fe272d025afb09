"""numpy, torch, the cores and the GPU: the one place that knows which library holds the numbers."""
