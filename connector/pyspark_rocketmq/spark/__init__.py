"""Spark: checks of sessions, and differences between Spark's versions."""
