"""How a job ends badly."""

from __future__ import annotations


class JobFailed(Exception):
    """The job could not do its work; the text is a sentence for the user. Exit code 1."""
