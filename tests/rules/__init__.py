"""Rules of the contracts as table rows: a scene, a call with its sender, and the resulting error or events."""
