"""Per-example gradients of one parameter, in the smallest form each layer allows."""
