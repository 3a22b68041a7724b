"""The rules of the contracts as rows: a scene, who calls what, and the error or the events that come of it."""
