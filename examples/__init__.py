"""Examples: one file, or one folder, one idea."""
