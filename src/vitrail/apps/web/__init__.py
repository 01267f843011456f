"""A page to look at explanations in a browser."""

from vitrail.apps.web.server import Settings, application, server

__all__ = ["Settings", "application", "server"]
