"""Who may do what: rules in the one log (granted.py), what each door asks of them (gate.py), and changes (changes.py).

Pure: who asks is an argument, told by whoever runs the core.
"""
