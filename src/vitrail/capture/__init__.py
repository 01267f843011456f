"""One pass on a shadow of the model: attention calls, hooks, forward, backward, layers."""
