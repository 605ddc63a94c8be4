"""Spark itself: sessions and what each version of it can do."""
