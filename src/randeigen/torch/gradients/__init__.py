"""Per-example gradients of one parameter, in the smallest representation that each layer allows."""
