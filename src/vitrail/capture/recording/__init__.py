"""One pass of a shadow: what its attention calls and hooks keep, differentiated, and shown event by event."""

from vitrail.capture.recording.layer import Layer, Probs, Readout, Recording, Stream

__all__ = ["Layer", "Probs", "Readout", "Recording", "Stream"]
