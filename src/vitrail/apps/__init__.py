"""The command line, the web page and the demonstration."""
