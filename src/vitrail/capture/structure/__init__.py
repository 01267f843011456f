"""What a model does with its tokens, measured on the model and remembered by the form of its inputs."""
