"""Content-addressed storage."""
