"""Questions to the servers without a copy: what is held, every change in order, what an operator asks for."""
