"""The commands of `chp` for operators: they ask servers, change their state, and measure them."""
