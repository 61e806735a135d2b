"""The copy: channels and how they get complete, keys and their order, what a watch missed. Pure."""
