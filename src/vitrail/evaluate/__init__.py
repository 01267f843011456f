"""Metrics, data sets and the bench that runs both."""
