"""The commands of `chp` that read and write keys."""
