"""From a torch function to a Program."""
