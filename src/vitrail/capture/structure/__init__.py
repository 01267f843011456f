"""The structure of a model: what it does with its tokens, measured and remembered by the form of its inputs."""
