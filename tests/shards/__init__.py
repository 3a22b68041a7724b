"""The Python tests in shards: files dealt to processes by the seconds they took before, with one report."""
