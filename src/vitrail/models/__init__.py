"""What a model is: families and their parts, inputs and grids, loading by name, embedded models."""
