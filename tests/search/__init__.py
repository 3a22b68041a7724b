"""A search for what hurts: coalitions of anybody against the honest programs' own decisions, on the twin."""
