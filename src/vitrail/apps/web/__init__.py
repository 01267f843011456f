"""The explorer: a web page to look at explanations, `vitrail app`."""

from vitrail.apps.web.server import Settings, application, server

__all__ = ["Settings", "application", "server"]
