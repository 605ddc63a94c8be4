"""What users start from: each runs as it is, and is run by the tests."""
